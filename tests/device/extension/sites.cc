// Which of the engine's waits is which.
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
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

}  // namespace

std::string engine_site(const char* kind) {
  std::array<void*, kFrames> frames{};
  const int depth = backtrace(frames.data(), kFrames);
  std::ostringstream site;
  int places = 0;
  for (int frame = 0; frame < depth && places < kPlaces; ++frame) {
    Dl_info info{};
    void* const address = frames[static_cast<std::size_t>(frame)];
    const bool known = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
    const bool engine = known && std::strstr(info.dli_fname, "_native.") != nullptr;
    if (!engine && (places > 0 || frame > 2)) break;  // the first frames are this library's
    if (!engine) continue;
    site << (places++ == 0 ? kind : "") << ' ' << std::hex
         << static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
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
