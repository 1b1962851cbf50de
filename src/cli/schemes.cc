// gradweave schemes: every scheme with its options.
#include "gradweave/schemes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "base/names.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "schemes/compressed.h"

namespace gradweave::cli {
namespace {

struct SchemesArguments {
  std::vector<std::string> names;
  bool json = false;
};

std::string default_text(const OptionSpec& option) {
  if (option.default_value.empty()) return "automatic";
  const std::string_view unit = name_of(option.unit);
  return fmt::format("{}{}{}", option.default_value, unit.empty() ? "" : " ", unit);
}

std::string range_text(const OptionSpec& option) {
  if (option.type != OptionType::kText) {
    std::string range = fmt::format("{} to {}", option.minimum, option.maximum);
    if (!option.tuned) return range;
    return fmt::format("{}; tuned in training from {} to {}, {}", range, option.tuned->low,
                       option.tuned->high, name_of(option.tuned->scale));
  }
  return option.choices.empty() ? "" : "one of " + listed(option.choices);
}

void add_row(Table& table, const OptionSpec& option, bool with_range) {
  const std::string range = with_range ? range_text(option) : "";
  table.rows.push_back(
      {"  " + std::string(option.name), default_text(option),
       fmt::format("{} [{}]{}{}", option.meaning, option.default_source, range.empty() ? "" : "; ", range)});
}

Table empty_table() {
  return {.header = {"scheme", "default", "what"}, .rows = {}, .left = {true, true, true}};
}

void add_heading(Table& table, std::string_view name, std::string what) {
  table.rows.push_back({std::string(name), "", std::move(what)});
  table.styles.resize(table.rows.size());
  table.styles.back() = Style::kBold;
}

void add_scheme(Table& table, const SchemeInfo& scheme) {
  add_heading(table, scheme.name, fmt::format("{} ({})", scheme.summary, name_of(scheme.effect)));
}

// What all schemes with that payload have beside their own.
std::vector<OptionSpec> shared_options(Payload payload) {
  return payload == Payload::kGradient ? compressor_options() : average_options();
}

bool is_shared(const SchemeInfo& scheme, const OptionSpec& option) {
  const std::vector<OptionSpec> shared = shared_options(scheme.payload);
  return std::ranges::find(shared, option.name, &OptionSpec::name) != shared.end();
}

// All schemes, and once what they share.
Table overview() {
  Table table = empty_table();
  for (const SchemeInfo& scheme : schemes()) {
    add_scheme(table, scheme);
    for (const OptionSpec& option : scheme.options) {
      if (!is_shared(scheme, option)) add_row(table, option, false);
    }
  }
  for (const Payload payload : {Payload::kGradient, Payload::kParameter}) {
    std::vector<std::string_view> having;
    for (const SchemeInfo& scheme : schemes()) {
      if (scheme.payload == payload) having.push_back(scheme.name);
    }
    add_heading(table, payload == Payload::kGradient ? "compressed gradients" : "compressed averages",
                "of " + listed(having));
    for (const OptionSpec& option : shared_options(payload)) add_row(table, option, false);
  }
  return table;
}

// The schemes that were asked for, with all there is to know.
Table details(const std::vector<std::string>& names) {
  Table table = empty_table();
  for (const std::string& name : names) {
    const SchemeInfo& scheme = find_scheme(name);
    add_scheme(table, scheme);
    table.rows.push_back({"", "", std::string(scheme.paper)});
    for (const OptionSpec& option : scheme.options) add_row(table, option, true);
  }
  return table;
}

Json object_of(const std::vector<std::string>& names) {
  Json object = schemes_object();
  if (names.empty()) return object;
  Json chosen = Json::array();
  for (const std::string& name : names) {
    find_scheme(name);  // throws if there is none
    chosen.push_back(
        *std::ranges::find_if(object["schemes"], [&](const Json& row) { return row["name"] == name; }));
  }
  return {{"schemes", std::move(chosen)}};
}

void run_schemes(const SchemesArguments& arguments, const Outcome& outcome) {
  if (arguments.json) return print(object_of(arguments.names));
  const Screen screen = standard_output(outcome.wide);
  if (!arguments.names.empty()) {
    std::cout << details(arguments.names).text(screen);
    return;
  }
  std::cout << overview().text(screen)
            << "\n'gradweave schemes SCHEME' has the ranges and values of its options.\n";
}

}  // namespace

void add_schemes(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<SchemesArguments>();
  CLI::App* command = app.add_subcommand("schemes", "List every scheme with its options");
  command->add_option("SCHEME", arguments->names, "Show only these schemes, with ranges and values")
      ->type_name("SCHEME");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer("Examples:\n  gradweave schemes dear\n  gradweave schemes --json");
  command->callback([arguments, &outcome] { run_schemes(*arguments, outcome); });
}

}  // namespace gradweave::cli
