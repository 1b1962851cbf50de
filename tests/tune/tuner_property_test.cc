#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "gradweave/tune.h"

namespace gradweave {
namespace {

// The times of measurements, whatever is tried: often equal, sometimes none.
rc::Gen<double> times() {
  return rc::gen::weightedOneOf<double>(
      {{6, rc::gen::map(rc::gen::inRange(1, 2000), [](int us) { return us * 1e-6; })},
       {2, rc::gen::just(1e-3)},
       {1, rc::gen::just(std::numeric_limits<double>::infinity())}});
}

rc::Gen<TunedParameter> parameters() {
  return rc::gen::exec([] {
    const int low = *rc::gen::inRange(1, 10'000);
    const int high = low + *rc::gen::element(0, 1, 50, 1'000'000);
    return TunedParameter{{static_cast<double>(low), static_cast<double>(high),
                           *rc::gen::element(Scale::kLinear, Scale::kLogarithmic)},
                          *rc::gen::arbitrary<bool>()};
  });
}

RC_GTEST_PROP(Tuner, IsBoundedAndNeverWorseThanTheStart, ()) {
  const auto tuned =
      *rc::gen::container<std::vector<TunedParameter>>(*rc::gen::inRange<std::size_t>(1, 4), parameters());
  std::vector<double> start;
  if (*rc::gen::weightedElement<bool>({{4, true}, {1, false}})) {
    for (const TunedParameter& parameter : tuned)
      start.push_back(parameter.range.low * *rc::gen::element(0.5, 1.0, 2.0));
  }
  const int trials = *rc::gen::inRange(2, 12);
  Tuner tuner(tuned, start, trials);
  Tuner same(tuned, start, trials);
  int measurements = 0;
  while (const auto place = tuner.next()) {
    RC_ASSERT(place == same.next());
    const std::vector<double> values = tuner.trials()[*place].values;
    RC_ASSERT(values == same.trials()[*place].values);
    for (std::size_t d = 0; *place > 0 && d < tuned.size(); ++d) {
      RC_ASSERT(values[d] >= tuned[d].range.low && values[d] <= tuned[d].range.high);
      RC_ASSERT(!tuned[d].integer || values[d] == std::round(values[d]));
    }
    const double seconds = measurements == 0 ? 1e-3 : *times();
    tuner.add(seconds);
    same.add(seconds);
    ++measurements;
    RC_ASSERT(tuner.trials()[tuner.best()].median() <= tuner.trials()[0].median());
  }
  RC_ASSERT(measurements <= trials + 6);
}

}  // namespace
}  // namespace gradweave
