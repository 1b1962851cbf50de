// gradweave schemes: every scheme with its options.
#include "gradweave/schemes.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/commands.h"
#include "cli/output.h"

namespace gradweave::cli {
namespace {

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
                            std::string(name_of(option.unit)),
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
    print(schemes_object());
  });
}

}  // namespace gradweave::cli
