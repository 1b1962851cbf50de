#include "run/reference.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gradweave::testing {

Reference::Reference(const Plan& plan, const Workload& workload, const Job& job)
    : plan_(plan), index_(workload), job_(job) {
  for (const Block& block : plan.blocks)
    block_tensor_.push_back(static_cast<std::int32_t>(*index_.find_tensor(block.tensor)));
  const auto note = [&](const Iteration& iteration) {
    for (const Apply& apply : iteration.applies) {
      reach_ = std::max<std::int64_t>(reach_, -apply.merges.front());
      keeps_own_ |= apply.correction == Correction::kLocal;
      if (apply.source != Source::kLocalGradient && apply.correction != Correction::kLocal) continue;
      for (std::int32_t b : apply.blocks) stepped_locally_.insert(tensor_of(b));
    }
  };
  std::ranges::for_each(plan.prologue, note);
  std::ranges::for_each(plan.period, note);
  std::vector<Values> start, zeros;
  for (const TensorPlace& tensor : index_.tensors) {
    start.emplace_back(static_cast<std::size_t>(tensor.numel), 1.0);
    zeros.emplace_back(static_cast<std::size_t>(tensor.numel), 0.0);
  }
  parameters_.assign(static_cast<std::size_t>(ranks()), start);
  momenta_.assign(static_cast<std::size_t>(ranks()), zeros);
  residuals_.resize(static_cast<std::size_t>(ranks()));
}

std::vector<std::int64_t> Reference::listed(std::int64_t n, const std::vector<std::int32_t>& merges) const {
  std::vector<std::int64_t> result;
  for (std::int32_t m : merges) {
    if (n + m >= 0) result.push_back(n + m);
  }
  return result;
}

std::vector<std::int64_t> Reference::existing(std::int64_t n, const std::vector<std::int32_t>& merges) const {
  std::vector<std::int64_t> result = listed(n, merges);
  if (end_) std::erase_if(result, [&](std::int64_t i) { return i >= *end_; });
  return result;
}

Values Reference::part(const Values& tensor, std::int32_t block) const {
  const Block& place = plan_.blocks[static_cast<std::size_t>(block)];
  return {tensor.begin() + place.begin, tensor.begin() + place.end};
}

// ---- one iteration

void Reference::iterate() {
  run_applies(PointKind::kForwardStart);
  compute_gradients();
  compensate();
  run_applies(PointKind::kBackwardEnd);
  at_end();
  ++n_;
}

void Reference::compute_gradients() {
  const std::int64_t n = base_ + n_;
  local_.assign(static_cast<std::size_t>(ranks()), {});
  if (job_.drops(n) != 0) spoilt_.insert(n_);
  for (int r = 0; r < ranks(); ++r) {
    const auto place = static_cast<std::size_t>(r);
    if (job_.overflows(r, n)) spoilt_.insert(n_);
    for (std::size_t t = 0; t < index_.tensors.size(); ++t) {
      const auto tensor = static_cast<std::int32_t>(t);
      if (!job_.used(r, n, tensor)) continue;
      Values& gradient = local_[place][tensor];
      gradient = job_.gradient(r, n, 0, tensor, parameters_[place][t]);
      if (!job_.accumulates_in(n)) continue;
      const Values before = job_.gradient(r, n, 1, tensor, parameters_[place][t]);
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += before[i];
    }
  }
  gradients_[n_] = local_;
}

// Error feedback: what is dropped is added to a later gradient.
void Reference::compensate() {
  const Residual& rule = plan_.residual;
  if (!rule.enabled) return;
  const double coefficient =
      std::min(rule.cap, rule.initial + static_cast<double>((base_ + n_) / rule.every) * rule.step);
  const auto& dropped = iteration(n_).dropped;
  const auto before = residuals_;
  for (int r = 0; r < ranks(); ++r) {
    auto& residuals = residuals_[static_cast<std::size_t>(r)];
    for (std::size_t b = 0; b < plan_.blocks.size(); ++b) {
      const auto block = static_cast<std::int32_t>(b);
      Gradients& sent = gradients_[n_][static_cast<std::size_t>(r)];
      const auto left = residuals.find(block);
      const bool dropped_now = std::ranges::find(dropped, block) != dropped.end();
      if (left != residuals.end()) {
        Values& gradient =
            sent.try_emplace(tensor_of(block),
                             Values(parameters_[0][static_cast<std::size_t>(tensor_of(block))].size()))
                .first->second;
        for (std::size_t i = 0; i < left->second.size(); ++i) {
          gradient[static_cast<std::size_t>(plan_.blocks[b].begin) + i] += coefficient * left->second[i];
        }
        residuals.erase(left);
        if (!dropped_now) owed_.emplace(n_, tensor_of(block));
      }
      if (dropped_now && sent.contains(tensor_of(block)))
        residuals[block] = part(sent.at(tensor_of(block)), block);
    }
  }
  if (spoilt_.contains(n_)) residuals_ = before;
}

void Reference::read(const Apply& local) {
  for (std::int32_t b : local.blocks) {
    std::vector<Values>& values = read_[{n_, b}];
    for (const auto& parameters : parameters_)
      values.push_back(part(parameters[static_cast<std::size_t>(tensor_of(b))], b));
  }
}

// ---- collectives

Reference::Delivered Reference::run_op(const Op& op, const std::vector<std::int64_t>& merges) const {
  Delivered delivered;
  const bool mean = plan_.merge == Merge::kMean && op.payload == Payload::kGradient && !keeps_own_;
  const double share =
      (op.payload == Payload::kGradient ? ranks() : 1.0) * (mean ? static_cast<double>(merges.size()) : 1.0);
  for (int r = 0; r < ranks(); ++r) {
    const auto place = static_cast<std::size_t>(r);
    Values own;
    for (std::int32_t b : op.blocks) {
      const std::int32_t t = tensor_of(b);
      Values sum(static_cast<std::size_t>(plan_.blocks[static_cast<std::size_t>(b)].end -
                                          plan_.blocks[static_cast<std::size_t>(b)].begin));
      for (std::int64_t n : merges) {
        if (op.payload == Payload::kParameter) {
          sum = read_.at({n, b})[place];
        } else if (const auto found = gradients_.at(n)[place].find(t);
                   found != gradients_.at(n)[place].end()) {
          const Values gradient = part(found->second, b);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
        }
      }
      own.insert(own.end(), sum.begin(), sum.end());
    }
    delivered.sum.resize(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) delivered.sum[i] += own[i] / share;
    delivered.own.push_back(std::move(own));
  }
  return delivered;
}

std::pair<Values, std::vector<Values>> Reference::delivered(const Apply& apply, std::int32_t block) const {
  const std::vector<std::int64_t> want = listed(n_, apply.merges);
  const bool parameter = apply.source == Source::kAveragedParameter;
  for (std::int64_t n = n_; n >= 0; --n) {
    const Iteration& there = iteration(n);
    for (std::size_t i = 0; i < there.ops.size(); ++i) {
      const Op& op = there.ops[i];
      const auto found = std::ranges::find(op.blocks, block);
      if ((op.payload == Payload::kParameter) != parameter || found == op.blocks.end() ||
          op.collective == Collective::kReduceScatter || listed(n, op.merges) != want)
        continue;
      std::ptrdiff_t begin = 0;
      for (auto b = op.blocks.begin(); b != found; ++b) {
        const Block& place = plan_.blocks[static_cast<std::size_t>(*b)];
        begin += place.end - place.begin;
      }
      const Block& place = plan_.blocks[static_cast<std::size_t>(block)];
      const auto cut = [&](const Values& values) {
        return Values(values.begin() + begin, values.begin() + begin + (place.end - place.begin));
      };
      const Delivered result = run_op(op, existing(n, op.merges));
      std::vector<Values> own;
      for (const Values& mine : result.own) own.push_back(cut(mine));
      return {cut(result.sum), own};
    }
  }
  throw std::logic_error("nothing delivers a block that is applied");
}

// ---- applies

bool Reference::spoilt(const Apply& apply) const {
  return std::ranges::any_of(existing(n_, apply.merges), [&](std::int64_t n) { return spoilt_.contains(n); });
}

bool Reference::applies_now(const Apply& apply) const {
  if (existing(n_, apply.merges).empty() || (end_ && apply.source == Source::kLocalGradient)) return false;
  if (apply.source == Source::kAveragedParameter || !spoilt(apply)) return true;
  // A correction adds to the local gradient of this iteration: either may be sound alone.
  const bool local = apply.source == Source::kLocalGradient || apply.correction == Correction::kLocal;
  return local && !end_ && !spoilt_.contains(n_);
}

// Whether the values after the apply are those of its local step, be it left out or not.
bool Reference::steps_locally(const Apply& apply) const {
  return apply.source == Source::kLocalGradient && !end_ && !existing(n_, apply.merges).empty();
}

bool Reference::used_by_any(const Apply& apply, std::int32_t tensor) const {
  for (std::int64_t n : existing(n_, apply.merges)) {
    if (owed_.contains({n, tensor})) return true;
    for (int r = 0; r < ranks(); ++r) {
      if (job_.used(r, base_ + n, tensor)) return true;
    }
  }
  return false;
}

void Reference::run_applies(PointKind kind) {
  std::vector<const Apply*> order;
  for (const Apply& apply : iteration(n_).applies) {
    if (apply.at.kind == kind && (applies_now(apply) || steps_locally(apply))) order.push_back(&apply);
  }
  std::ranges::stable_sort(order, [&](const Apply* a, const Apply* b) {
    return kind == PointKind::kBackwardEnd ? a->at.layer > b->at.layer : a->at.layer < b->at.layer;
  });
  for (const Apply* apply : order) {
    if (apply->source == Source::kAveragedParameter) {
      average(*apply);
    } else if (apply->source == Source::kLocalGradient) {
      std::vector<Gradients> stepped(static_cast<std::size_t>(ranks()));
      for (std::int32_t b : apply->blocks) {
        for (std::size_t r = 0; r < stepped.size(); ++r) {
          if (local_[r].contains(tensor_of(b))) stepped[r][b] = part(local_[r].at(tensor_of(b)), b);
        }
      }
      if (applies_now(*apply)) step(stepped);
      read(*apply);
    } else {
      step(reduced(*apply, std::vector<Gradients>(static_cast<std::size_t>(ranks())), false));
    }
  }
}

void Reference::at_end() {
  std::vector<Gradients> stepped(static_cast<std::size_t>(ranks()));
  std::vector<const Apply*> local;
  const auto step_these = [&] {
    step(stepped);
    for (const Apply* apply : std::exchange(local, {})) read(*apply);
    for (Gradients& gradients : stepped) gradients.clear();
  };
  for (const Apply& apply : iteration(n_).applies) {
    if (apply.at.kind != PointKind::kIterationEnd) continue;
    if (steps_locally(apply)) local.push_back(&apply);
    if (!applies_now(apply)) continue;
    if (apply.source == Source::kAveragedParameter) {
      step_these();
      average(apply);
    } else if (apply.source == Source::kLocalGradient) {
      for (std::int32_t b : apply.blocks) {
        for (std::size_t r = 0; r < stepped.size(); ++r) {
          if (local_[r].contains(tensor_of(b)))
            stepped[r].try_emplace(b, part(local_[r].at(tensor_of(b)), b));
        }
      }
    } else {
      const std::vector<Gradients> gradients = reduced(apply, stepped, true);
      for (std::size_t r = 0; r < stepped.size(); ++r) {
        for (const auto& [b, gradient] : gradients[r]) stepped[r][b] = gradient;
      }
    }
  }
  step_these();
}

// The gradients that a reduced apply gives to the optimizer; `before`: what applies before it have given.
std::vector<Reference::Gradients> Reference::reduced(const Apply& apply, const std::vector<Gradients>& before,
                                                     bool at_end) {
  std::vector<Gradients> gradients(static_cast<std::size_t>(ranks()));
  const bool corrects = apply.correction == Correction::kLocal;
  const bool sound = !spoilt(apply);
  for (std::int32_t b : apply.blocks) {
    const std::int32_t t = tensor_of(b);
    const bool put = sound && used_by_any(apply, t);
    for (std::size_t r = 0; r < gradients.size(); ++r) {
      if (before[r].contains(b)) {
        gradients[r][b] = before[r].at(b);
      } else if (corrects && at_end && !end_ && !spoilt_.contains(n_) && local_[r].contains(t)) {
        gradients[r][b] = part(local_[r].at(t), b);
      } else if (put) {
        gradients[r][b] = part(Values(parameters_[r][static_cast<std::size_t>(t)].size()), b);
      }
    }
    if (!put) continue;
    const auto [result, own] = delivered(apply, b);
    for (std::size_t r = 0; r < gradients.size(); ++r) {
      for (std::size_t i = 0; i < result.size(); ++i)
        gradients[r][b][i] += result[i] - (corrects ? own[r][i] : 0);
    }
  }
  return gradients;
}

void Reference::step(const std::vector<Gradients>& gradients) {
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (const auto& [b, gradient] : gradients[r]) {
      const auto tensor = static_cast<std::size_t>(tensor_of(b));
      const Block& place = plan_.blocks[static_cast<std::size_t>(b)];
      Values whole(parameters_[r][tensor].size());
      std::ranges::copy(gradient, whole.begin() + place.begin);
      step_elements(parameters_[r][tensor], momenta_[r][tensor], whole, place.begin, place.end);
    }
  }
}

void Reference::average(const Apply& apply) {
  for (std::int32_t b : apply.blocks) {
    const auto [sum, own] = delivered(apply, b);
    const auto begin = static_cast<std::size_t>(plan_.blocks[static_cast<std::size_t>(b)].begin);
    for (std::size_t r = 0; r < parameters_.size(); ++r) {
      Values& parameter = parameters_[r][static_cast<std::size_t>(tensor_of(b))];
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double mean = sum[i] / ranks();
        parameter[begin + i] =
            apply.mode == Mode::kCorrect ? parameter[begin + i] + (mean - own[r][i]) : mean;
      }
    }
  }
}

// ---- drain

void Reference::drain() {
  end_ = n_;
  for (std::int64_t last = n_ + reach_; n_ <= last; ++n_) {
    run_applies(PointKind::kForwardStart);
    run_applies(PointKind::kBackwardEnd);
    at_end();
  }
  for (std::int32_t t : stepped_locally_) {
    const auto place = static_cast<std::size_t>(t);
    Values mean(parameters_[0][place].size());
    for (const auto& mine : parameters_) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += mine[place][i] / ranks();
    }
    for (auto& mine : parameters_) mine[place] = mean;
  }
  base_ += *end_;
  n_ = 0;
  end_.reset();
  gradients_.clear();
  read_.clear();
  spoilt_.clear();
  owed_.clear();
}

}  // namespace gradweave::testing
