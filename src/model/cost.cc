#include "gradweave/cost.h"

#include <utility>

#include "base/quoted.h"
#include "gradweave/compression.h"
#include "gradweave/error.h"

namespace gradweave {
namespace {

// Halves an all-reduce: reduce-scatter takes the floor, all-gather the rest, so that the pair costs the
// whole.
OpCost halved(OpCost whole, Collective collective) {
  const OpCost first{whole.startup / 2, whole.total() / 2 - whole.startup / 2};
  if (collective == Collective::kReduceScatter) return first;
  return {whole.startup - first.startup, whole.work - first.work};
}

// Returns the largest of `parts` equal parts.
std::int64_t part_of(std::int64_t total, std::int64_t parts) { return (total + parts - 1) / parts; }

// Returns floor(total * part / whole), of which the part may be the larger. Errors: InvalidInput beyond 2^62.
std::int64_t in_proportion(std::int64_t total, std::int64_t part, std::int64_t whole) {
  __extension__ using Wide = __int128;
  const Wide share = static_cast<Wide>(total) * part / whole;
  if (share > (Wide{1} << 62))
    throw InvalidInput("takes more than 2^62 ns", "a compressed message", "give smaller times or sizes");
  return static_cast<std::int64_t>(share);
}

// Returns multiply_ceil(), whose error names the link.
std::int64_t on_link(const Link& link, std::int64_t count, Decimal rate) {
  try {
    return multiply_ceil(count, rate);
  } catch (const InvalidInput& error) {
    throw error.within("link " + in_quotes(link.name));
  }
}

}  // namespace

std::int64_t sent_elements(const Compression& compression, const WorkloadIndex& index,
                           std::span<const Slice> slices) {
  const auto of_block = find_compressor(compression.name).sent_elements;
  if (of_block == nullptr) return 0;
  std::int64_t sent = 0;
  for (const Slice& slice : slices) {
    const TensorPlace& tensor = index.tensors[slice.tensor];
    const std::int64_t length = slice.end - slice.begin;
    if (tensor.rows == 0) return 0;
    sent += of_block(block_shape(length, tensor.rows, length == tensor.numel), compression.parameters);
  }
  return sent;
}

CostModel::CostModel(const Workload& workload, const Cluster& cluster, Compression compression,
                     Payload payload, bool outer)
    : index_((check(workload), workload)),
      cluster_(cluster),
      compression_(std::move(compression)),
      payload_(payload),
      outer_(outer) {
  check(cluster);
  if (!compression_.name.empty()) wire_cost(compression_, payload_, {});  // refuses what is unknown
  const std::size_t links = cluster.links.size() + (cluster.inside ? cluster.inside->links.size() : 0);
  for (std::size_t k = 0; k < links; ++k) {
    const Link& link = link_at(cluster, k);
    const Halves halves = link.halves.value_or(Halves{});
    const Levels levels = link.levels.value_or(Levels{.inside = {}, .between = {0, link.us_per_byte}});
    rates_.push_back({times_1000(link.us_per_byte), times_1000(halves.reduce_scatter.us_per_byte),
                      times_1000(halves.all_gather.us_per_byte), times_1000(levels.inside.us_per_byte),
                      times_1000(levels.between.us_per_byte)});
    std::vector<Nanoseconds>& given = given_ns_.emplace_back();
    for (const Layer& layer : workload.layers) {
      given.push_back(layer.communication_ns ? on_link(link, *layer.communication_ns, link.relative_time)
                                             : -1);
    }
  }
}

bool CostModel::has_given_time(std::size_t tensor) const {
  return given_ns_[0][index_.tensors[tensor].layer] >= 0;
}

std::int64_t CostModel::bytes(std::span<const Slice> slices) const {
  std::int64_t total = 0;
  for (const Slice& slice : slices)
    total += (slice.end - slice.begin) * size_of(index_.tensors[slice.tensor].dtype);
  return total;
}

Nanoseconds CostModel::given_share(std::size_t link, const Slice& slice) const {
  const TensorPlace& place = index_.tensors[slice.tensor];
  const Nanoseconds total = given_ns_[link][place.layer];
  const std::int64_t elements = index_.layer_elements[place.layer];
  return floor_share(total, place.layer_offset + slice.end, elements) -
         floor_share(total, place.layer_offset + slice.begin, elements);
}

MessageLoad CostModel::load(std::size_t link, std::span<const Slice> slices) const {
  return load(link, slices, compression_, payload_);
}

MessageLoad CostModel::load(std::size_t link, std::span<const Slice> slices, const Compression& compression,
                            Payload payload) const {
  const bool gains = carries_gains(compression, payload);
  const bool asks_for_shapes =
      !compression.name.empty() && find_compressor(compression.name).sent_elements != nullptr;
  MessageLoad load;
  for (const Slice& slice : slices) {
    const std::int64_t elements = slice.end - slice.begin;
    const DType dtype = index_.tensors[slice.tensor].dtype;
    const std::int64_t size = gains ? size_of_gain(dtype) : size_of(dtype);
    const std::int64_t bytes = elements * size;
    load.elements += elements;
    load.bytes += bytes;
    if (asks_for_shapes) {
      const std::int64_t sent = sent_elements(compression, index_, std::span(&slice, 1));
      load.sent_elements += sent;
      load.shaped_elements += sent > 0 ? elements : 0;
    }
    if (!has_given_time(slice.tensor)) continue;
    load.given_elements += elements;
    load.given_bytes += bytes;
    load.given += given_share(link, slice) * (size / size_of(dtype));
  }
  return load;
}

// What of a node's message goes over one of its links.
MessageLoad CostModel::carried(std::size_t link, const MessageLoad& load) const {
  if (!link_at(cluster_, link).each_worker || !has_levels(cluster_)) return load;
  const std::int64_t shards = cluster_.workers_per_node;
  return {part_of(load.elements, shards), part_of(load.bytes, shards), part_of(load.given_elements, shards),
          part_of(load.given_bytes, shards), part_of(load.given, shards)};
}

OpCost CostModel::uncompressed(std::size_t link, const MessageLoad& whole_message) const {
  const MessageLoad load = carried(link, whole_message);
  OpCost whole{.work = load.given};
  if (load.bytes > load.given_bytes) {
    whole.startup = startup_of(link);
    whole.work += on_link(link_at(cluster_, link), load.bytes - load.given_bytes, rates_[link].whole);
  }
  return whole;
}

OpCost CostModel::half(std::size_t link, Collective collective, const MessageLoad& whole_message) const {
  const std::optional<Halves>& halves = link_at(cluster_, link).halves;
  if (!halves) return halved(uncompressed(link, whole_message), collective);
  const MessageLoad load = carried(link, whole_message);
  OpCost half = halved({.work = load.given}, collective);
  if (load.bytes > load.given_bytes) {
    const bool scatters = collective == Collective::kReduceScatter;
    half.startup = (scatters ? halves->reduce_scatter : halves->all_gather).startup_ns;
    const Rates& rates = rates_[link];
    half.work += on_link(link_at(cluster_, link), load.bytes - load.given_bytes,
                         scatters ? rates.reduce_scatter : rates.all_gather);
  }
  return half;
}

OpCost CostModel::compressed(std::size_t number, const MessageLoad& load, const Compression& compression,
                             Payload payload, bool halves) const {
  OpCost whole;
  if (load.elements == 0) return whole;
  const Link& link = link_at(cluster_, number);
  const std::int64_t shards = link.levels            ? link.levels->shards
                              : has_levels(cluster_) ? cluster_.workers_per_node
                                                     : 1;
  const std::int64_t together = link.each_worker ? 1 : shards;  // on one link
  const std::int64_t element_bytes = load.bytes / load.elements;
  const std::int64_t elements = part_of(load.elements, shards);
  const std::int64_t sent = shards == 1 && load.shaped_elements == load.elements ? load.sent_elements : 0;
  const CompressedCost cost = compressed_cost(compression, payload, elements, element_bytes, cluster_, sent);
  const std::int64_t encoded = in_proportion(cost.equivalent_bytes, together, 1);
  const std::int64_t modelled = load.elements - load.given_elements;
  whole.startup = cost.encode_ns + cost.decode_ns;
  whole.work = on_link(link, floor_share(encoded, modelled, load.elements), rates_[number].compressible) +
               in_proportion(load.given, encoded, elements * shards * element_bytes);
  if (modelled == 0) return whole;
  const Nanoseconds once = link.levels ? link.levels->inside.startup_ns : 0;
  whole.startup += once + (link.startup_ns - once) * (halves ? 2 : cost.half_startups) / 2;
  whole.work += on_link(link, modelled * element_bytes, rates_[number].inside);
  return whole;
}

OpCost CostModel::all_reduce_of(std::size_t link, const MessageLoad& load) const {
  return compression_.name.empty() ? uncompressed(link, load)
                                   : compressed(link, load, compression_, payload_, false);
}

OpCost CostModel::cost(std::size_t link, Collective collective, std::span<const Slice> slices,
                       const Compression& compression, Payload payload) const {
  const MessageLoad sum = load(link, slices, compression, payload);
  if (compression.name.empty())
    return is_half(collective) ? half(link, collective, sum) : uncompressed(link, sum);
  const OpCost whole = compressed(link, sum, compression, payload, is_half(collective));
  return is_half(collective) ? halved(whole, collective) : whole;
}

Nanoseconds CostModel::all_reduce(std::size_t link, std::span<const Slice> slices) const {
  return cost(link, Collective::kAllReduce, slices).total();
}

Nanoseconds CostModel::all_reduce(std::size_t link, Slice slice) const {
  return all_reduce(link, std::span(&slice, 1));
}

Nanoseconds CostModel::all_reduce_bytes(std::size_t link, std::int64_t bytes) const {
  return startup_of(link) + on_link(link_at(cluster_, link), bytes, rates_[link].whole);
}

}  // namespace gradweave
