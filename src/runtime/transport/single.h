// The collectives on one tensor of each rank, by the names that torch has for them since 2.13. 2.11 and 2.12 have the former
// names alone, of which later releases warn.
#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace gradweave::runtime {

auto all_gather_single(auto& group, at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& how) {
  if constexpr (requires { group.all_gather_single(to, from, how); }) {
    return group.all_gather_single(to, from, how);
  } else {
    return group._allgather_base(to, from, how);
  }
}

auto reduce_scatter_single(auto& group, at::Tensor& to, at::Tensor& from,
                           const c10d::ReduceScatterOptions& how) {
  if constexpr (requires { group.reduce_scatter_single(to, from, how); }) {
    return group.reduce_scatter_single(to, from, how);
  } else {
    return group._reduce_scatter_base(to, from, how);
  }
}

auto all_to_all_single(auto& group, at::Tensor& to, at::Tensor& from, std::vector<std::int64_t>& to_sizes,
                       std::vector<std::int64_t>& from_sizes, const c10d::AllToAllOptions& how) {
  if constexpr (requires { group.all_to_all_single(to, from, to_sizes, from_sizes, how); }) {
    return group.all_to_all_single(to, from, to_sizes, from_sizes, how);
  } else {
    return group.alltoall_base(to, from, to_sizes, from_sizes, how);
  }
}

}  // namespace gradweave::runtime
