// Which layers' parameters to average in which of H iterations, so that compute waits least.
//
// Z. Tang et al., "DreamDDP", 2025, Section 3.3, with the queue of Eq. 7 instead of the plain sum of Eqs.
// 9-12.
//
//   1..L   the layers with tensors, in backward order; here 0..L-1, called positions
//   P_k    ready(k): backward_end of layer k, from the start of the iteration
//   W_k    awaited(k): when compute waits for layer k's average: the end of the iteration's computation or,
//          with forward overlap, forward_start(k) of the next iteration
//   queue  of a set S: its layers in backward order become messages on links (Packer); a message is ready
//          with its last layer
//   e(S)   stall: max over the messages of S of max(0, end - W of the message's last layer). By so much the
//          iteration grows; every queue is empty before the next one begins, so H iterations add up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gradweave/cost.h"
#include "solve/message.h"

namespace gradweave {

// Packs layers, one after another, into fused messages on links. A layer's tensors (of one dtype) join the
// last message of a link, which then waits for them, or become a message of their own: whatever is through
// first; on a tie they join, and the link listed first takes them. On one link that is MG-WFBP's rule: most
// often the best fusion there is, else a few percent later. Costs are the cost model's, to the nanosecond, in
// O(1): exact work is added as whole nanoseconds and a fraction. What is compressed costs what the model says of the
// whole message.
class Packer {
  __extension__ using Wide = unsigned __int128;
  struct Work {  // ns + fraction / denominator, exactly
    Nanoseconds ns = 0;
    Wide fraction = 0;
  };
  struct Unit {  // a layer's tensors of one dtype
    DType dtype{};
    bool modelled = false;  // costs a start-up
    std::vector<Slice> slices;
  };
  struct Layer {
    std::size_t layer = 0;
    Nanoseconds ready = 0, awaited = 0;
    std::size_t first_unit = 0, end_unit = 0;
  };

 public:
  // `model` must outlive the packer.
  Packer(const CostModel& model, bool forward_overlap);

  std::size_t layer_count() const { return layers_.size(); }
  std::size_t layer(std::size_t position) const { return layers_[position].layer; }
  Nanoseconds ready(std::size_t position) const { return layers_[position].ready; }
  Nanoseconds awaited(std::size_t position) const { return layers_[position].awaited; }
  std::size_t link_count() const { return links_.size(); }
  // Returns the least link time that layer `position` can take, without start-up, rounded down.
  // O(tensor dtypes * links). 0 where messages are compressed: a layer may ride along for nearly nothing.
  Nanoseconds least_work(std::size_t position) const;

  struct Placed {
    std::size_t link = 0;
    bool joined = false;  // the link's last message
  };
  // The queues of the links while layers are appended in backward order.
  class Queue {
   public:
    explicit Queue(const Packer& packer) : packer_(&packer), links_(packer.model_->link_count()) {}
    void clear();
    // Appends layer `position`, which must come after all others. O(tensor dtypes * links). `placed`, if
    // given, gets one entry for each dtype of the layer.
    void append(std::size_t position, std::vector<Placed>* placed = nullptr);
    // Returns e of what was appended. Never less after an append. O(links).
    Nanoseconds stall() const;
    // Returns when link `k` is through.
    Nanoseconds end(std::size_t k) const { return links_[k].end; }

   private:
    struct LinkQueue {
      Nanoseconds free_before = 0;  // when the last message could have started
      Nanoseconds end = 0;
      Nanoseconds awaited = 0;  // of the last message
      Nanoseconds late = 0;     // max(0, end - awaited) over the messages before
      Work work;                // of the last message
      MessageLoad load;         // of the last message, where messages are compressed
      DType dtype{};
      bool any = false, modelled = false;
    };
    struct Choice {
      Nanoseconds end = 0;
      Placed placed;
    };
    Choice best_for(const Layer& layer, std::size_t unit) const;

    const Packer* packer_;
    std::vector<LinkQueue> links_;
  };

  // e of {i..j} for fixed i and growing j: what exact_intervals() asks for most. One or two links and layers
  // of one dtype and of modelled cost, the usual case, take a path of a few nanoseconds.
  class Interval {
   public:
    explicit Interval(const Packer& packer) : packer_(&packer), queue_(packer) {}
    void clear();
    // Appends the layer and returns the stall of what was appended so far.
    Nanoseconds append(std::size_t position);

   private:
    struct PlainLink {  // LinkQueue where there is one dtype and every layer costs a start-up
      Nanoseconds free_before = 0;
      Nanoseconds end = 0;
      Nanoseconds awaited = 0;
      Nanoseconds late = 0;
      Nanoseconds work_ns = kNoMessage;
      std::uint64_t fraction = 0;
    };
    static constexpr Nanoseconds kNoMessage = std::numeric_limits<Nanoseconds>::max() / 4;
    template <std::size_t kLinks>
    Nanoseconds append_plain(std::size_t position);

    const Packer* packer_;
    Queue queue_;
    std::array<PlainLink, 2> links_;
  };

  // Returns e(S) for the positions in ascending order. O(positions * links).
  Nanoseconds stall(std::span<const std::size_t> positions) const;

  struct Packed {
    Message message;
    std::size_t link = 0;
    std::size_t last = 0;  // position of its last layer
  };
  // Returns the messages of a set, in order of their last layer: on each link, the order of its queue.
  std::vector<Packed> pack(std::span<const std::size_t> positions) const;

 private:
  struct PlainWork {  // a Work whose fraction is small, of a layer with one unit
    Nanoseconds ns = 0;
    std::uint64_t fraction = 0;
  };
  struct PlainLayer {
    Nanoseconds ready = 0, awaited = 0;
    std::array<PlainWork, 2> work;  // per link
  };
  void check_times(Nanoseconds total) const;
  void find_plain_layers();
  struct LinkCost {
    Nanoseconds startup = 0;
    Wide denominator = 1;  // of the fractions
  };
  bool compresses() const { return !model_->compression().name.empty(); }
  Work work_of(std::size_t link, const Unit& unit) const;
  const Work& work(std::size_t unit, std::size_t link) const { return work_[unit * links_.size() + link]; }
  const MessageLoad& load(std::size_t unit, std::size_t link) const {
    return load_[unit * links_.size() + link];
  }
  Work sum(std::size_t link, const Work& a, const Work& b) const;

  const CostModel* model_;
  std::vector<Layer> layers_;
  std::vector<Unit> units_;
  std::vector<Work> work_;         // [unit][link]
  std::vector<MessageLoad> load_;  // [unit][link], where messages are compressed
  std::vector<LinkCost> links_;
  std::vector<PlainLayer> plain_layers_;  // parallel to layers_; empty where the general way is needed
};

// Sets of positions, one for each of H iterations, each ascending.
struct Assignment {
  std::vector<std::vector<std::size_t>> sets;
  Nanoseconds stall = 0;  // sum of e over the sets
};

// Returns H contiguous sets of equal number: set h holds positions [hL/H, (h+1)L/H).
Assignment equal_number(const Packer& packer, std::size_t period);

// Returns the best assignment of contiguous intervals, some of which may be empty.
//   D[0][0] = 0, D[h][j] = min over i <= j of D[h-1][i] + e({i..j-1}), e of nothing = 0
// Where several are best, earlier iterations take more. O(L^2 H) time, with each row of e built in O(L), and
// O(L H) memory.
Assignment exact_intervals(const Packer& packer, std::size_t period);

// Returns what Algorithm 2 finds, corrected: a set that can hide the next layer takes it, an empty set takes
// one in any case, a set that overflows is closed, and where just the next layer would overflow both ways are
// searched. The search states (set, first layer) are kept, so O(L^2 + L H) instead of O(2^min(L-H,H)).
Assignment paper_search(const Packer& packer, std::size_t period);

// Returns the best assignment of arbitrary sets that a depth-first branch and bound finds in `max_nodes`
// nodes, starting from exact_intervals(); never worse than that. O(nodes * H * links).
Assignment arbitrary_sets(const Packer& packer, std::size_t period, std::int64_t max_nodes);

// Adds to each set layers that the set can carry without a larger stall: first the longest run {0..m} before
// its first layer (Section 3.4; deep layers gain most), then later layers in order, each that fits. Stalls
// stay or shrink.
void fill_bubbles(const Packer& packer, Assignment& assignment);

}  // namespace gradweave
