// Files as texts.
#pragma once

#include <filesystem>
#include <string>

namespace gradweave {

// Returns what the file holds. Errors: InvalidInput naming it if it can't be read or exceeds 1 GiB.
std::string read_file(const std::filesystem::path& path);

// Returns the file or descriptor that `path` leads to over all symbolic links, there yet or not. Errors: InvalidInput for links
// without an end.
std::filesystem::path target_of(std::filesystem::path path);

}  // namespace gradweave
