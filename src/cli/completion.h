// What an unfinished command line may go on with: the scripts of completions/ ask for it.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace gradweave::cli {

// Each returns names as they are written: "compare"; "--output", "-o".
std::vector<std::string> commands_of(const CLI::App& app);
std::vector<std::string> options_of(const CLI::App& command);

// Returns what may stand for the last of `words`, which follow "gradweave"; nothing where it is the name of a
// file, or free.
std::vector<std::string> completions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace gradweave::cli
