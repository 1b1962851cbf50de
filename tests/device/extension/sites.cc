// Which of the engine's waits is which.
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "device/extension/accelerator.h"

namespace gradweave::device {
namespace {

constexpr int kFrames = 24, kPlaces = 3;

struct Sites {
  std::mutex mutex;
  std::set<std::string> seen;
  std::string left_out;
  static Sites& get() {
    static Sites sites;
    return sites;
  }
};

// Where in the engine's library a return address is, or -1. dladdr() looks through all symbols: once for each address.
std::ptrdiff_t place_in_engine(void* address) {
  thread_local std::unordered_map<void*, std::ptrdiff_t> known;
  const auto [entry, is_new] = known.try_emplace(address, -1);
  Dl_info info{};
  if (is_new && dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
      std::strstr(info.dli_fname, "_native.") != nullptr)
    entry->second = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
  return entry->second;
}

}  // namespace

std::string engine_site(const char* kind) {
  std::array<void*, kFrames> frames{};
  const int depth = backtrace(frames.data(), kFrames);
  std::ostringstream site;
  int places = 0;
  for (int frame = 0; frame < depth && places < kPlaces; ++frame) {
    const std::ptrdiff_t place = place_in_engine(frames[static_cast<std::size_t>(frame)]);
    if (place < 0 && (places > 0 || frame > 2)) break;  // the first frames are this library's
    if (place < 0) continue;
    site << (places++ == 0 ? kind : "") << ' ' << std::hex << place;
  }
  return site.str();
}

bool passes(const std::string& site) {
  if (site.empty()) return true;
  Sites& sites = Sites::get();
  const std::lock_guard lock(sites.mutex);
  sites.seen.insert(site);
  return site != sites.left_out;
}

std::vector<std::string> take_sites(const std::string& left_out) {
  Sites& sites = Sites::get();
  const std::lock_guard lock(sites.mutex);
  sites.left_out = left_out;
  const std::set<std::string> seen = std::exchange(sites.seen, {});
  return {seen.begin(), seen.end()};
}

}  // namespace gradweave::device
