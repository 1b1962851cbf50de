// Workloads and measurements from what other tools write. docs/formats.md says what each must contain.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gradweave/collective.h"
#include "gradweave/fit.h"
#include "gradweave/workload.h"

namespace gradweave {

// One run of an nccl-tests program.
struct NcclTestsRun {
  Collective collective = Collective::kAllReduce;
  std::optional<std::int64_t> workers;  // nothing where the text does not list the ranks
  std::int64_t workers_per_node = 1;
  // Of whole messages, as cluster files count them; an all-reduce's in place, a half's out of place, as training
  // sends them, or the other where there is no such column.
  std::vector<Measurement> measurements;
};

// Returns the runs that `text` holds, at least one: what all_reduce_perf, reduce_scatter_perf and all_gather_perf print,
// with whatever a launcher prints before it on each line, or the file of their option -J. `workers`: how many took part, where the text
// may not list them; it helps to tell an unnamed collective.
// Errors: InvalidInput with line or key for another collective or one that can't be told, wrong results, no rows. O(size).
std::vector<NcclTestsRun> parse_nccl_tests(std::string_view text,
                                           std::optional<std::int64_t> workers = std::nullopt);
// The same on a file, whose name errors then say.
std::vector<NcclTestsRun> read_nccl_tests(const std::filesystem::path& path,
                                          std::optional<std::int64_t> workers = std::nullopt);

// What a trace of a job was reduced to.
struct ImportedWorkload {
  Workload workload;
  std::int64_t ranks = 0;
  std::int64_t iterations = 0;  // of all ranks, those that counted
  std::int64_t left_out =
      0;  // iterations without a whole forward and backward, or with other layers than most
  std::int64_t damaged = 0;        // events that could not be read
  std::vector<std::string> notes;  // sentences: what the traces do not show
};

// Called now and then with the file's number, counted from 0, and how many bytes of it have been read.
using ImportProgress = std::function<void(std::size_t file, std::int64_t bytes)>;

// Returns the workload that the PyTorch profiler's traces (.json or .json.gz; "-": standard input, once) show: of each layer the median over
// iterations, scaled so that layers add up to the median iteration, and of that the largest over ranks. Files of one
// rank, if they say which, count as one.
//   A layer is the innermost nn.Module, or where these are not recorded the outermost operator, around the operator that
//   used a parameter last in the backward. On an accelerator, a moment of the host's is that at which what had been
//   launched until then, collectives aside, was done.
// Errors: InvalidInput naming the file and what to switch on while recording, if there are no iterations, no shapes, or
// ranks with different layers. Memory: 1 MiB, and some 150 bytes for each
// event that counts, 2^24 at most; O(n log n) of those.
ImportedWorkload import_kineto(const std::vector<std::filesystem::path>& files, const std::string& name,
                               const ImportProgress& progress = {});

}  // namespace gradweave
