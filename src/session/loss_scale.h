// The scale of a loss whose gradients would be too small for 16-bit floats, as torch.amp.GradScaler keeps it.
#pragma once

namespace gradweave {

class LossScale {
 public:
  explicit LossScale(double first) : scale_(first) {}

  double value() const { return scale_; }
  // An iteration has ended. `overflowed`: some gradient was not finite, and its step was left out.
  void update(bool overflowed) {
    if (overflowed) {
      scale_ *= kBackoff;
      finite_ = 0;
    } else if (++finite_ == kInterval) {
      scale_ *= kGrowth;
      finite_ = 0;
    }
  }

 private:
  static constexpr double kGrowth = 2, kBackoff = 0.5;
  static constexpr int kInterval = 2000;  // iterations without overflow
  double scale_;
  int finite_ = 0;
};

}  // namespace gradweave
