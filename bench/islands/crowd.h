// Islands at a meeting point that train nothing.
#pragma once

#include <string>

// Comes with `count` islands `name`0, `name`1 and so on. For each number that it reads it waits until all of them are in an epoch of so
// many islands, and says so. Ends with its input.
int run_crowd(const std::string& key, const std::string& meeting, const std::string& name, int count);
