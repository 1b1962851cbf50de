// Any bytes are runs that hold measurements, or InvalidInput with a bounded message.
#include "gradweave/import.h"
#include "reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradweave;
  return check_input(data, size, [](std::string_view text) {
    for (const NcclTestsRun& run : parse_nccl_tests(text)) {
      if (run.measurements.empty()) std::abort();
    }
  });
}
