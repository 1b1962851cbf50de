#include "reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return gradweave::check_reader(data, size, gradweave::parse_plan);
}
