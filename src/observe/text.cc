#include <cmath>
#include <cstdio>

#include "gradweave/observe.h"

namespace gradweave {
namespace {

std::string number(double value, int places) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

std::string ms(double ns) { return number(ns / 1e6, 2) + " ms"; }

std::string beside(const Observer::Difference& difference) {
  return difference.what + ": " + ms(difference.measured_ns) + " measured, " + ms(difference.predicted_ns) +
         " predicted";
}

}  // namespace

std::string to_text(const Observer::Report& report) {
  const double predicted = report.predicted.iteration_ns();
  std::string text = "plan of " + report.predicted.name + ": " + ms(report.iteration_ns) +
                     " an iteration measured, " + ms(predicted) +
                     " predicted for forward, backward and communication\n";
  text += "exposed communication: " + ms(report.exposed_ns) + " measured, " +
          ms(report.predicted.exposed_ns) + " predicted\n";
  if (!report.differences.empty()) text += "largest difference: " + beside(report.differences.front()) + "\n";
  if (!report.op.what.empty()) text += "op that is off by most: " + beside(report.op) + "\n";
  for (const Observer::Report::OfLink& link : report.links) {
    text += "link " + link.link + ": ops take " + number(link.factor, 2) + " times what was predicted";
    if (std::isfinite(link.uncertainty)) text += " (+- " + number(100 * link.uncertainty, 0) + "%)";
    text += "\n";
  }
  if (report.ccr > 0) {
    text += "communication over backward (CCR): " + number(report.ccr, 2);
    if (std::isfinite(report.ccr_uncertainty)) text += " +- " + number(report.ccr_uncertainty, 2);
    text += "\n";
  }
  for (const Observer::Report::Straggler& straggler : report.stragglers) {
    text += "rank " + std::to_string(straggler.rank) + " computes " + number(straggler.factor, 2) +
            " times as long as the median rank: the others wait for it\n";
  }
  return text;
}

}  // namespace gradweave
