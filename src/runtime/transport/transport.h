// How a collective gets over a process group. A transport is one file and one row of the table in transport.cc;
// it knows nothing of plans.
#pragma once

#include <ATen/core/TensorBody.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "gradweave/plan.h"
#include "run/pending.h"

namespace gradweave::runtime {

// What is known of a c10d backend; the table is in transport.cc.
struct Backend {
  std::string_view name;          // c10d's
  bool native_halves = false;     // its reduce_scatter and all_gather move half of an all-reduce's bytes each
  bool eager_sends = false;       // a send ends without its receive: a ring of them can't deadlock
  bool ordered_launches = false;  // all groups' collectives have to be launched in one order on all ranks;
                                  // then a wait holds a stream, not the host
};

// Returns what is known of `name`; of an unknown backend, what holds for any.
Backend backend_called(std::string_view name);
// Of the backend that serves a group's collectives on tensors of `device`.
Backend backend_of(c10d::ProcessGroup& group, c10::Device device);

// Returns where part `part` of so many elements begins: floor(numel*part/parts).
constexpr std::int64_t edge_of(std::int64_t numel, int part, int parts) { return numel * part / parts; }

// Returns part `part` of `flat` in so many parts, up to where the next begins.
at::Tensor part_of(const at::Tensor& flat, int part, int parts);

// A collective on `flat`, in place.
// all_reduce: the sum. reduce_scatter: this rank's part of the sum lies at its place, the rest is undefined.
// all_gather: every rank's part at its place. Parts are those of part_of().
struct Call {
  c10d::ProcessGroup& group;  // outlives the call
  at::Tensor flat;            // one dimension, contiguous; dtype and length alike on all ranks
  Collective collective = Collective::kAllReduce;
  std::size_t sequence = 0;  // its number among those on this group, alike on all ranks
  std::chrono::milliseconds timeout{};

  int world() const { return group.getSize(); }
  int rank() const { return group.getRank(); }
  std::int64_t edge(int part) const { return edge_of(flat.numel(), part, world()); }
  at::Tensor part(int p) const { return part_of(flat, p, world()); }
};

using run::Pending;

// Nothing is left to wait for.
class Ended : public Pending {
 public:
  void wait() override {}
};

struct Transport {
  std::string_view name, summary;
  bool (*serves)(const Backend& backend, Collective collective, c10::ScalarType dtype, int world);
  std::unique_ptr<Pending> (*start)(const Call& call, const Backend& backend);
  bool by_order = false;  // the backend tells collectives apart by the order in which it is called
};

// Returns all transports, the best first.
std::span<const Transport> transports();

// Returns the best transport that serves `world` ranks. Errors: InvalidInput if there is none.
const Transport& choose(const Backend& backend, Collective collective, c10::ScalarType dtype, int world);

// Starts the collective by the best transport; one rank, and a message without elements, have nothing to exchange. The caller
// owes the same order of calls on all ranks.
std::unique_ptr<Pending> start(const Call& call);

// Starts an all-reduce from a thread that has waited for another message. Which of several such threads comes first differs
// between ranks: where the order of calls counts it goes as its halves over send and receive. It has two numbers.
std::unique_ptr<Pending> start_in_any_order(const Call& call);

}  // namespace gradweave::runtime
