// How fast this machine encodes and decodes compressed messages.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>

#include "gradweave/compression.h"
#include "gradweave/workload.h"

namespace gradweave::runtime {

// Of uncompressed bytes.
struct MeasuredRate {
  double encode_us_per_byte = 0, decode_us_per_byte = 0;
};

// Returns what a message of `numel` elements takes among `world_size` ranks, the fastest of a few times, without the
// time of its exchange, once a warm-up is over. Takes some ten times as long. Errors: InvalidInput if there is no
// such codec.
MeasuredRate measure_rate(const Compression& compression, int world_size, std::int64_t numel,
                          c10::ScalarType dtype, c10::Device device);

// Returns the speed here of the compressors that a job's plans may use, by a short measurement of messages of some of its
// layers.
std::map<std::string, MeasuredRate> compressor_rates(const std::string& scheme,
                                                     const std::map<std::string, std::string>& options,
                                                     const Workload& workload, int world_size,
                                                     c10::Device device);

}  // namespace gradweave::runtime
