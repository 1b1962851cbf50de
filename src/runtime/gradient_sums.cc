#include "runtime/gradient_sums.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

namespace gradweave::runtime {
namespace {

// What products are made of: 16-bit floats have no room for them, and a complex number counts as two real ones.
at::Tensor factors_of(const at::Tensor& x) {
  const at::Tensor real = x.is_complex() ? at::view_as_real(x.resolve_conj()) : x;
  return real.element_size() == 2 ? real.to(at::kFloat) : real;
}

double sum_of_products(const at::Tensor& x, const at::Tensor& y) {
  return at::sum(factors_of(x) * factors_of(y), at::kDouble).item<double>();
}

double norm_square(const at::Tensor& x) { return x.defined() ? sum_of_products(x, x) : 0; }

// An undefined one counts as zeros.
at::Tensor difference(const at::Tensor& x, const at::Tensor& y) {
  if (!y.defined()) return x;
  return x.defined() ? x - y : -y;
}

}  // namespace

GradientSums gradient_sums(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& own_before,
                           const std::vector<at::Tensor>& mean, const std::vector<at::Tensor>& mean_before,
                           const std::vector<at::Tensor>& step, const std::vector<at::Tensor>& moment,
                           double share) {
  GradientSums sums;
  for (std::size_t p = 0; p < own.size(); ++p) {
    sums.own += norm_square(own[p]);
    sums.own_change += norm_square(difference(own[p], own_before[p]));
  }
  for (std::size_t p = 0; p < mean.size(); ++p) {
    const at::Tensor change = difference(mean[p], mean_before[p]);
    sums.mean += norm_square(mean[p]);
    sums.mean_change += norm_square(change);
    if (moment.empty() || !moment[p].defined()) continue;
    if (change.defined()) sums.change += sum_of_products(change, step[p]);
    sums.step -= sum_of_products(step[p], moment[p]);
    if (share == 0 || !own_before[p].defined() || !mean_before[p].defined()) continue;
    const at::Tensor noise =
        factors_of(own_before[p].as_strided(step[p].sizes(), step[p].strides()) - mean_before[p]);
    const at::Tensor moved = factors_of(step[p]), by = factors_of(moment[p]);
    const at::Tensor rate = at::where(by == 0, 0.0, -moved / by);
    sums.noise_in_change += share * sum_of_products(noise * noise, rate);
  }
  return sums;
}

}  // namespace gradweave::runtime
