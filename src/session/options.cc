#include "session/options.h"

#include <c10/util/StringUtil.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cmath>
#include <set>

#include "gradweave/error.h"
#include "gradweave/schemes.h"
#include "gradweave/tune.h"
#include "io/json_write.h"

namespace gradweave {
namespace {

constexpr double kShortest_s = 0.001, kLongest_s = 1e9;

[[noreturn]] void refuse(const std::string& option, const std::string& value, const std::string& remedy) {
  throw InvalidInput("it is " + value, "SessionOptions::" + option, remedy);
}

void check_seconds(const std::string& option, double seconds) {
  if (seconds >= kShortest_s && seconds <= kLongest_s) return;
  refuse(option, c10::str(seconds, " s"), c10::str("give ", kShortest_s, " to ", kLongest_s, " s"));
}

void check_count(const std::string& option, int count) {
  if (count < 1) refuse(option, std::to_string(count), "give at least 1");
}

void check_not_negative(const std::string& option, double value) {
  if (!std::isfinite(value) || value < 0) refuse(option, c10::str(value), "give a finite number >= 0");
}

// The network interfaces that are up here; empty where that can't be told.
std::set<std::string> interfaces() {
  std::set<std::string> names;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return names;
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_UP) != 0) names.insert(each->ifa_name);
  }
  freeifaddrs(found);
  return names;
}

void check_link(const std::string& where, const SessionLink& link) {
  if (link.name.empty()) refuse(where + ".name", "empty", "give the link a name");
  check_not_negative(where + ".startup_us", link.startup_us);
  check_not_negative(where + ".us_per_byte", link.us_per_byte);
  if (link.interface.empty()) return;
  const std::set<std::string> up = interfaces();
  if (up.empty() || up.contains(link.interface)) return;
  std::string choice;
  for (const std::string& name : up) choice += (choice.empty() ? "" : ", ") + name;
  refuse(where + ".interface", "'" + link.interface + "', which is not up here", "choose among " + choice);
}

}  // namespace

void check_timeout(std::chrono::milliseconds timeout) {
  check_seconds("timeout", std::chrono::duration<double>(timeout).count());
}

void check_options(const SessionOptions& options) {
  const SchemeOptions set = parse_options(options.scheme, options.options);
  if (options.tune != 0) check_tuning(set, options.tune);
  check_count("warm_up", options.warm_up);
  check_count("profile_iterations", options.profile_iterations);
  check_seconds("probe_seconds", options.probe_seconds);
  check_not_negative("loss_scale", options.loss_scale);
  std::set<std::string> names;
  for (std::size_t n = 0; n < options.links.size(); ++n) {
    const SessionLink& link = options.links[n];
    check_link("links[" + std::to_string(n) + "]", link);
    if (!names.insert(link.name).second) {
      throw InvalidInput("two are called '" + link.name + "'", "SessionOptions::links",
                         "give each its own name");
    }
  }
}

std::vector<std::pair<std::string, std::string>> alike_of(const SessionOptions& options) {
  const auto chosen = [](std::optional<bool> given) -> std::string {
    return !given ? "by default" : *given ? "true" : "false";
  };
  std::string set, links;
  for (const auto& [name, value] : options.options)
    set += (set.empty() ? "" : ", ") + json_string(name) + ": " + json_string(value);
  for (const SessionLink& link : options.links) {
    links += c10::str(links.empty() ? "" : ", ", json_string(link.name), " ", link.startup_us, " us + ",
                      link.us_per_byte, " us a byte");
  }
  return {{"timeout", c10::str(options.timeout.count(), " ms")},
          {"check", chosen(options.check)},
          {"scheme", json_string(options.scheme)},
          {"options", "{" + set + "}"},
          {"warm_up", std::to_string(options.warm_up)},
          {"profile_iterations", std::to_string(options.profile_iterations)},
          {"find_unused_parameters", chosen(options.find_unused_parameters)},
          {"follow", chosen(options.follow)},
          {"tune", std::to_string(options.tune)},
          {"links", "[" + links + "]"},
          {"probe_seconds", c10::str(options.probe_seconds)},
          {"loss_scale", c10::str(options.loss_scale)}};
}

}  // namespace gradweave
