// What a session's options may be, and what of them all ranks must have alike.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gradweave/torch.h"

namespace gradweave {

// Throws InvalidInput unless `timeout` is one that ranks can meet by.
void check_timeout(std::chrono::milliseconds timeout);

// Throws InvalidInput naming the first of the other options that can't be, apart from what depends on the model.
void check_options(const SessionOptions& options);

// Returns {name, value} of what ranks must have alike.
std::vector<std::pair<std::string, std::string>> alike_of(const SessionOptions& options);

}  // namespace gradweave
