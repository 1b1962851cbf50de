// gradweave schemes: every scheme with its options.
#include "gradweave/schemes.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/output.h"

namespace gradweave::cli {
namespace {

std::string_view name_of(OptionType type) {
  switch (type) {
    case OptionType::kInteger:
      return "integer";
    case OptionType::kNumber:
      return "number";
    case OptionType::kText:
      return "text";
  }
  return "";
}

// The default as JSON: a number where the option is one, null where the scheme finds it.
Json default_of(const OptionSpec& option) {
  if (option.default_value.empty()) return nullptr;
  if (option.type == OptionType::kText) return option.default_value;
  return Json::parse(option.default_value);
}

Json to_object(const SchemeInfo& scheme) {
  Json options = Json::array();
  for (const OptionSpec& option : scheme.options) {
    Json row = {{"name", option.name},
                {"type", name_of(option.type)},
                {"unit", option.unit},
                {"default", default_of(option)},
                {"default_source", option.default_source},
                {"meaning", option.meaning}};
    if (option.type == OptionType::kText) {
      row["choices"] = option.choices;
    } else {
      row["minimum"] = option.minimum;
      row["maximum"] = option.maximum;
    }
    options.push_back(std::move(row));
  }
  return {{"name", scheme.name},
          {"summary", scheme.summary},
          {"paper", scheme.paper},
          {"consistency", name_of(scheme.consistency)},
          {"options", std::move(options)}};
}

void print_for_people() {
  Table table{.header = {"scheme", "option", "default", "unit", "what"},
              .rows = {},
              .left = {true, true, false, true, true}};
  for (const SchemeInfo& scheme : schemes()) {
    table.rows.push_back({std::string(scheme.name), "", "", "",
                          fmt::format("{} ({})", scheme.summary, name_of(scheme.consistency))});
    for (const OptionSpec& option : scheme.options) {
      const bool found = option.default_value.empty();
      table.rows.push_back({"", std::string(option.name), found ? "found" : std::string(option.default_value),
                            std::string(option.unit),
                            fmt::format("{} [{}]", option.meaning, option.default_source)});
    }
  }
  std::cout << table.text();
}

}  // namespace

void add_schemes(CLI::App& app, Outcome&) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("schemes", "List every scheme with its options");
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer("Example:\n  gradweave schemes --json");
  command->callback([json] {
    if (!*json) return print_for_people();
    Json rows = Json::array();
    for (const SchemeInfo& scheme : schemes()) rows.push_back(to_object(scheme));
    print({{"schemes", std::move(rows)}});
  });
}

}  // namespace gradweave::cli
