#include "base/gradient_noise.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace gradweave {
namespace {

TEST(GradientNoise, TellsWhatPartsHaveInCommon) {
  // Two parts: (3, 1) and (1, -1). Their mean (2, 0) has 4; each has 10 and 2.
  GradientNoise noise;
  EXPECT_EQ(noise.share(2), 1);
  noise.add(GradientNoise::of(4, 6, 2), 8);
  EXPECT_DOUBLE_EQ(noise.signal, 2);
  EXPECT_DOUBLE_EQ(noise.noise, 4);
  EXPECT_DOUBLE_EQ(noise.share(2), 4.0 / 6);
  EXPECT_DOUBLE_EQ(noise.share(4), 3.0 / 6);
  EXPECT_EQ(noise.share(1), 1);
}

TEST(GradientNoise, OfFewPartsTellsTheShareOfMany) {
  std::mt19937 random{3};
  std::normal_distribution<double> normal;
  GradientNoise noise;
  for (int sample = 0; sample < 200; ++sample) {
    const int parts = 2 + sample % 2;
    double of_mean = 0, of_each = 0;
    for (int element = 0; element < 100; ++element) {
      const double common = normal(random);
      double sum = 0;
      for (int part = 0; part < parts; ++part) {
        const double gradient = common + 3 * normal(random);
        sum += gradient / parts;
        of_each += gradient * gradient / parts;
      }
      of_mean += sum * sum;
    }
    noise.add(GradientNoise::of(of_mean, of_each, parts), 8);
  }
  for (const int parts : {2, 3, 8}) EXPECT_NEAR(noise.share(parts), (1 + 9.0 / parts) / 10, 0.01);
}

TEST(GradientNoise, ForgetsAsAdamDoesAndLeavesOutWhatIsNotFinite) {
  GradientNoise noise{.signal = 2, .noise = 4};
  noise.add(GradientNoise::of(std::numeric_limits<double>::quiet_NaN(), 6, 2), 8);
  noise.add(GradientNoise::of(1, 1, 1), 8);  // of one part
  EXPECT_EQ(noise.signal, 2);
  noise.add({}, 1000);
  EXPECT_NEAR(noise.noise, 4 * 0.3677, 1e-3);
}

TEST(GradientNoise, IsNeverMoreThanAllNorLessThanItsPart) {
  EXPECT_EQ((GradientNoise{.signal = -1, .noise = 3}).share(2), 0.5);  // parts that pull apart
  EXPECT_EQ((GradientNoise{.signal = 3, .noise = -1}).share(2), 1);
}

}  // namespace
}  // namespace gradweave
