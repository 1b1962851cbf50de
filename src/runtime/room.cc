#include "runtime/room.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <limits>
#include <map>

#include "base/memory.h"
#include "base/text.h"
#include "gradweave/error.h"

namespace gradweave::runtime {
namespace {

// What the caching allocator has and nobody uses counts as left.
std::int64_t left_on(const c10::Device& device) {
  try {
    c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator->getDeviceStats(device.index());
    return static_cast<std::int64_t>(allocator->getMemoryInfo(device.index()).first) +
           stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  } catch (const c10::Error&) {  // not every backend tells
    return std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace

Room room_on(const c10::Device& device) {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  if (device.is_cpu()) return {name, available_memory()};
  return {name + (' ' + device.str()), left_on(device)};
}

std::string to_text(const Room& room) {
  return std::to_string(room.bytes) + ' ' + std::to_string(room.held) + ' ' + room.place;
}

Room room_of(const std::string& text) {
  std::size_t first = 0, second = 0;
  const std::int64_t bytes = std::stoll(text, &first);
  const std::int64_t held = std::stoll(text.substr(first), &second);
  return {text.substr(first + second + 1), bytes, held};
}

void require_room(std::int64_t bytes, const std::vector<Room>& ranks) {
  std::map<std::string, std::int64_t> sharing;
  for (const Room& room : ranks) ++sharing[room.place];
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::int64_t share = ranks[rank].bytes / sharing[ranks[rank].place];
    if (bytes - ranks[rank].held <= share) continue;
    const std::int64_t left = share + ranks[rank].held;
    throw InvalidInput("it needs " + bytes_text(static_cast<double>(bytes)) +
                           " for gradients on their way, copies and messages on each rank, and rank " +
                           std::to_string(rank) + " has " + bytes_text(static_cast<double>(left)) + " left",
                       "plan",
                       "choose a scheme that needs less, such as ddp, or give auto "
                       "options={'max_extra_bytes': ...}; gradweave compare shows what each needs");
  }
}

}  // namespace gradweave::runtime
