#include "base/text.h"

#include <cmath>

#include "gradweave/observe.h"

namespace gradweave {
namespace {

std::string ms(double ns) { return fixed_text(ns / 1e6, 2) + " ms"; }

std::string beside(const Observer::Difference& difference) {
  return difference.what + ": " + ms(difference.measured_ns) + " measured, " + ms(difference.predicted_ns) +
         " predicted";
}

}  // namespace

std::string to_text(const Observer::Report& report) {
  const double predicted = report.predicted.iteration_ns();
  std::string text = "plan of " + report.predicted.name + ": " + ms(report.iteration_ns) +
                     " an iteration measured, " + ms(predicted) + " predicted\n";
  text += "exposed communication: " + ms(report.exposed_ns) + " measured, " +
          ms(report.predicted.exposed_ns) + " predicted\n";
  if (!report.differences.empty()) text += "largest difference: " + beside(report.differences.front()) + "\n";
  if (!report.op.what.empty()) text += "op that is off by most: " + beside(report.op) + "\n";
  for (const Observer::Report::OfLink& link : report.links) {
    text += "link " + link.link + ": ops take " + fixed_text(link.factor, 2) + " times what was predicted";
    if (std::isfinite(link.uncertainty)) text += " (+- " + fixed_text(100 * link.uncertainty, 0) + "%)";
    text += "\n";
  }
  if (report.ccr > 0) {
    text += "communication over backward (CCR): " + fixed_text(report.ccr, 2);
    if (std::isfinite(report.ccr_uncertainty)) text += " +- " + fixed_text(report.ccr_uncertainty, 2);
    text += "\n";
  }
  for (const Observer::Report::Straggler& straggler : report.stragglers) {
    text += "rank " + std::to_string(straggler.rank) + " computes " + fixed_text(straggler.factor, 2) +
            " times as long as the median rank: the others wait for it\n";
  }
  return text;
}

}  // namespace gradweave
