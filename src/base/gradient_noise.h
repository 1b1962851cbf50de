// What the gradients of parts of a batch have in common, and what of them is noise, from samples of them. No torch.
#pragma once

#include <algorithm>
#include <cmath>

namespace gradweave {

// The mean over parts averages away the noise of their gradients, and not what these agree on. One part's gradients can't tell the
// two apart: what changes from step to step may do so on all parts alike. A sample of all of them can: with n parts,
//
//   mean over parts of g^2 = signal + noise,  (mean over parts of g)^2 = signal + noise / n,
//
// summed over elements, and over the samples of the last thousand iterations or so, which Adam's second moment remembers too.
struct GradientNoise {
  double signal = 0, noise = 0;  // of one part, summed

  // One sample of `parts` parts, at least two: sums over its elements.
  static GradientNoise of(double squares_of_mean, double mean_of_squares, int parts) {
    const double noise = (mean_of_squares - squares_of_mean) * parts / (parts - 1);
    return {.signal = mean_of_squares - noise, .noise = noise};
  }
  // So many iterations after the last one. One that is not finite would make all later ones so, and counts as none.
  void add(const GradientNoise& sample, double iterations) {
    if (!std::isfinite(sample.signal + sample.noise)) return;
    const double kept = std::pow(0.999, iterations);
    signal = kept * signal + sample.signal;
    noise = kept * noise + sample.noise;
  }
  // Of the mean square of one part's gradient what the mean over `parts` has: between 1 / parts and 1; 1 before the first sample.
  double share(int parts) const {
    const double all = signal + noise;
    return all > 0 ? std::clamp((signal + noise / parts) / all, 1.0 / parts, 1.0) : 1;
  }
};

}  // namespace gradweave
