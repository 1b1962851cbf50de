#include "solve/intervals.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace gradweave {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max() / 4;

std::vector<std::size_t> range(std::size_t begin, std::size_t end) {
  std::vector<std::size_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

Nanoseconds total_stall(const Packer& packer, const Assignment& assignment) {
  Nanoseconds total = 0;
  for (const std::vector<std::size_t>& set : assignment.sets) total += packer.stall(set);
  return total;
}

// Returns the assignment whose set h holds positions [cuts[h], cuts[h+1]).
Assignment from_cuts(const Packer& packer, std::span<const std::size_t> cuts) {
  Assignment assignment;
  for (std::size_t h = 0; h + 1 < cuts.size(); ++h) assignment.sets.push_back(range(cuts[h], cuts[h + 1]));
  assignment.stall = total_stall(packer, assignment);
  return assignment;
}

// Returns the assignment that closes a set with the layer that makes it stall, or before that layer; the last
// set takes what is left. Where communication is plenty the former is close to the best.
Assignment closed_at_stall(const Packer& packer, std::size_t period, bool with_layer) {
  std::vector<std::size_t> cuts{0};
  Packer::Queue queue(packer);
  for (std::size_t p = 0; p < packer.layer_count() && cuts.size() < period; ++p) {
    queue.append(p);
    if (queue.stall() == 0) continue;
    const std::size_t cut = with_layer || cuts.back() == p ? p + 1 : p;
    cuts.push_back(cut);
    queue.clear();
    if (cut == p) queue.append(p);
  }
  cuts.resize(period + 1, packer.layer_count());
  return from_cuts(packer, cuts);
}

// A lower bound on the sum of stalls of layers i.. in so many sets: a set's link works from P_i to the last W
// at most, and as much longer as the set stalls.
class RestBound {
 public:
  explicit RestBound(const Packer& packer) : packer_(packer), work_(packer.layer_count() + 1, 0) {
    for (std::size_t p = packer.layer_count(); p-- > 0;) {
      work_[p] = work_[p + 1] + packer.least_work(p);
      latest_ = std::max(latest_, packer.awaited(p));
    }
  }
  Nanoseconds operator()(std::size_t i, std::size_t sets) const {
    if (i == packer_.layer_count()) return 0;
    if (sets == 0) return kNever;
    const auto links = static_cast<double>(packer_.link_count());
    const auto work = static_cast<double>(work_[i]);
    const double room = static_cast<double>(sets) * links * static_cast<double>(latest_ - packer_.ready(i));
    return static_cast<Nanoseconds>(
        std::max(0.0, (work - room) / links - 1e-12 * work));  // never above the exact bound
  }

 private:
  const Packer& packer_;
  std::vector<Nanoseconds> work_;  // least link time of layers p..
  Nanoseconds latest_ = 0;
};

}  // namespace

Assignment equal_number(const Packer& packer, std::size_t period) {
  std::vector<std::size_t> cuts;
  for (std::size_t h = 0; h <= period; ++h) cuts.push_back(h * packer.layer_count() / period);
  return from_cuts(packer, cuts);
}

Assignment exact_intervals(const Packer& packer, std::size_t period) {
  const std::size_t layers = packer.layer_count();
  const std::size_t width = layers + 1;
  // What exceeds the sum of some assignment is of no use.
  const Nanoseconds bound =
      std::min({equal_number(packer, period).stall, closed_at_stall(packer, period, true).stall,
                closed_at_stall(packer, period, false).stall});
  std::vector<Nanoseconds> best((period + 1) * width, kNever);  // D[h][j]
  std::vector<Nanoseconds> row(width, 0);                       // e({i..j-1})
  std::vector<std::uint32_t> cut((period + 1) * width, 0);      // the latest i that gives it
  best[0] = 0;
  const RestBound rest(packer);
  Packer::Interval interval(packer);
  for (std::size_t i = 0; i <= layers; ++i) {
    interval.clear();
    std::size_t end = i;  // row holds j = i..end
    row[i] = 0;
    for (std::size_t h = 1; h <= period; ++h) {
      const Nanoseconds before = best[(h - 1) * width + i];  // final: cuts before i are done
      if (before > bound || before + rest(i, period - h + 1) > bound) continue;
      Nanoseconds* d = &best[h * width];
      std::uint32_t* c = &cut[h * width];
      d[i] = std::min(d[i], before);  // an empty interval
      if (d[i] == before) c[i] = static_cast<std::uint32_t>(i);
      if (h > 1 && best[(h - 2) * width + i] == before) continue;  // as good with one iteration fewer
      // The maximum: given times that are compressed are rounded.
      for (; end < layers && row[end] <= bound; ++end)
        row[end + 1] = std::max(row[end], interval.append(end));
      const auto useless =
          std::upper_bound(row.begin() + static_cast<std::ptrdiff_t>(i),
                           row.begin() + static_cast<std::ptrdiff_t>(end) + 1, bound - before);
      const auto stop = static_cast<std::size_t>(useless - row.begin());
      for (std::size_t j = i + 1; j < stop; ++j) {
        const Nanoseconds candidate = before + row[j];
        const bool better = candidate <= d[j];
        d[j] = better ? candidate : d[j];
        c[j] = better ? static_cast<std::uint32_t>(i) : c[j];
      }
    }
  }
  std::vector<std::size_t> cuts(period + 1, layers);
  for (std::size_t h = period; h > 0; --h) cuts[h - 1] = cut[h * width + cuts[h]];
  return from_cuts(packer, cuts);
}

Assignment paper_search(const Packer& packer, std::size_t period) {
  const std::size_t layers = packer.layer_count();
  std::vector<std::size_t> overflow(layers, layers);  // first j with e({i..j}) > 0
  std::vector<Nanoseconds> overflow_stall(layers, 0);
  std::vector<Nanoseconds> all_stall(layers + 1, 0);  // e({i..L-1})
  Packer::Interval interval(packer);
  for (std::size_t i = 0; i < layers; ++i) {
    interval.clear();
    for (std::size_t j = i; j < layers; ++j) {
      const Nanoseconds stall = interval.append(j);
      if (stall > 0 && overflow[i] == layers) {
        overflow[i] = j;
        overflow_stall[i] = stall;
      }
      all_stall[i] = stall;
    }
  }
  // least[h][i]: of layers i.. in sets h..; close[h][i]: where set h ends.
  std::vector<std::vector<Nanoseconds>> least(period, std::vector<Nanoseconds>(layers + 1, 0));
  std::vector<std::vector<std::size_t>> close(period, std::vector<std::size_t>(layers + 1, layers));
  least[period - 1] = all_stall;
  for (std::size_t h = period - 1; h-- > 0;) {
    for (std::size_t i = 0; i < layers; ++i) {
      const std::size_t j = overflow[i];
      if (j == layers) continue;
      const Nanoseconds with = overflow_stall[i] + least[h + 1][j + 1];
      const Nanoseconds without = j > i ? least[h + 1][j] : kNever;
      least[h][i] = std::min(with, without);
      close[h][i] = with <= without ? j + 1 : j;
    }
  }
  std::vector<std::size_t> cuts{0};
  for (std::size_t h = 0; h < period; ++h) cuts.push_back(close[h][cuts.back()]);
  return from_cuts(packer, cuts);
}

void fill_bubbles(const Packer& packer, Assignment& assignment) {
  const std::size_t layers = packer.layer_count();
  for (std::vector<std::size_t>& set : assignment.sets) {
    const Nanoseconds allowed = packer.stall(set);
    const std::size_t first = set.empty() ? layers : set.front();
    const auto with_run = [&](std::size_t end) {
      std::vector<std::size_t> positions = range(0, end);
      positions.insert(positions.end(), set.begin(), set.end());
      return positions;
    };
    std::size_t fits = 0;
    std::size_t too_many = first + 1;
    while (too_many - fits > 1) {
      const std::size_t middle = fits + (too_many - fits) / 2;
      (packer.stall(with_run(middle)) <= allowed ? fits : too_many) = middle;
    }
    set = with_run(fits);
    Packer::Queue queue(packer);
    for (std::size_t position : set) queue.append(position);
    for (std::size_t position = set.empty() ? 0 : set.back() + 1; position < layers; ++position) {
      Packer::Queue longer = queue;
      longer.append(position);
      if (longer.stall() > allowed) continue;
      queue = std::move(longer);
      set.push_back(position);
    }
  }
  assignment.stall = total_stall(packer, assignment);
}

}  // namespace gradweave
