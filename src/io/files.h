// Files as texts.
#pragma once

#include <filesystem>
#include <string>

namespace gradweave {

// Returns what the file holds. Errors: InvalidInput naming it if it can't be read or exceeds 1 GiB.
std::string read_file(const std::filesystem::path& path);

}  // namespace gradweave
