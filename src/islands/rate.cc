#include "islands/rate.h"

namespace gradweave::islands {
namespace {

using namespace std::chrono_literals;

constexpr MeasuredRate::Time kWindow = 100ms;
constexpr std::uint64_t kLeastBytes = 1
                                      << 20;  // of a shorter window: less says something of round trips only

}  // namespace

void MeasuredRate::note(Time now, std::uint64_t acknowledged, bool more_on_way) {
  if (window_) {
    const Time elapsed = now - window_->since;
    const std::uint64_t bytes = acknowledged - window_->acknowledged;
    const bool enough = elapsed >= kWindow || (!more_on_way && bytes >= kLeastBytes && elapsed >= 1ms);
    if (more_on_way && !enough) return;
    if (enough && bytes > 0) {
      const double rate = static_cast<double>(bytes) / std::chrono::duration<double>(elapsed).count();
      bytes_per_second_ = bytes_per_second_ ? (*bytes_per_second_ + rate) / 2 : rate;
    }
    // A window without an acknowledgement goes on: a slow peer's rate is not nothing.
    if (enough && more_on_way && bytes == 0) return;
  }
  window_.reset();
  if (more_on_way) window_ = Window{now, acknowledged};
}

std::optional<double> MeasuredRate::seconds_for(std::uint64_t bytes) const {
  if (!bytes_per_second_ || !round_trip_) return std::nullopt;
  return std::chrono::duration<double>(*round_trip_).count() +
         static_cast<double>(bytes) / *bytes_per_second_;
}

}  // namespace gradweave::islands
