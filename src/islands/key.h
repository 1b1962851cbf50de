// The key of a job: who has its file may join, read and end; nobody else.
#pragma once

#include <array>
#include <filesystem>

namespace gradweave::islands {

using Key = std::array<unsigned char, 32>;

// Makes a file with a random key that its owner alone may read. Errors: InvalidInput if there is such a file, or it can't be
// written.
void make_key_file(const std::filesystem::path& path);

// Errors: InvalidInput if there is no such file, users other than its owner may read it, or it holds no key.
Key read_key_file(const std::filesystem::path& path);

}  // namespace gradweave::islands
