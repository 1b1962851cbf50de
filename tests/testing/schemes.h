// The schemes that there are, for tests of every one.
#pragma once

#include <string>
#include <vector>

#include "gradweave/schemes.h"

namespace gradweave::testing {

inline std::vector<std::string> scheme_names() {
  std::vector<std::string> names;
  for (const SchemeInfo& scheme : schemes()) names.emplace_back(scheme.name);
  return names;
}

}  // namespace gradweave::testing
