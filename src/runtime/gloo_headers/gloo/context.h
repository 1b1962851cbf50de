// torch's wheel has ProcessGroupGloo.hpp, but not Gloo's headers, which that file includes. The files of
// this folder declare what it names of Gloo, for a file that makes such a group and does nothing else with
// Gloo. Objects are handled through pointers alone, so that no size matters here.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
