// Any bytes, gzipped ones too, are a trace that becomes a workload, or InvalidInput with a bounded message.
#include <sys/mman.h>
#include <unistd.h>

#include "gradweave/import.h"
#include "reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradweave;
  static const int file = memfd_create("trace", 0);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  return check_input(data, size, [](std::string_view) {
    check_round_trip(import_kineto({path}, "fuzzed").workload, parse_workload);
  });
}
