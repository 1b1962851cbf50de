// Who trains together: torchrun's environment, the store, groups on Gloo.
#include <charconv>
#include <cstdlib>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gradweave/error.h"
#include "gradweave/torch.h"
#include "runtime/gloo.h"

namespace gradweave {
namespace {

constexpr std::string_view kRemedy = "start the program with torchrun --no-python, or set what torchrun sets";

std::string text_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0')
    throw InvalidInput("it is not set", std::string("environment variable ") + variable, kRemedy);
  return text;
}

int number_of(const char* variable, int least, int most) {
  const std::string text = text_of(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw InvalidInput(
        "'" + text + "' is not a number from " + std::to_string(least) + " to " + std::to_string(most),
        std::string("environment variable ") + variable, kRemedy);
  }
  return number;
}

bool is_true(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && std::string_view(text) == "True";
}

}  // namespace

Job job_of_environment(std::chrono::milliseconds timeout) {
  if (std::getenv("RANK") == nullptr) return {};
  Job job;
  job.world_size = number_of("WORLD_SIZE", 1, 1 << 20);
  job.rank = number_of("RANK", 0, job.world_size - 1);
  if (job.world_size == 1) return job;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(number_of("MASTER_PORT", 1, 65535));
  options.isServer = job.rank == 0 && !is_true("TORCHELASTIC_USE_AGENT_STORE");
  options.numWorkers = static_cast<std::size_t>(job.world_size);
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string host = text_of("MASTER_ADDR");
  try {
    job.store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    throw RuntimeFailure("rank " + std::to_string(job.rank) + " does not reach the store at " + host + ":" +
                         std::to_string(options.port) + ": " + error.what());
  }
  // Of this start of the job alone: torchrun keeps its store when it starts a job again.
  const char* start = std::getenv("TORCHELASTIC_RESTART_COUNT");
  job.store =
      c10::make_intrusive<c10d::PrefixStore>(std::string("gradweave/") + (start ? start : "0"), job.store);
  return job;
}

c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(const Job& job, const std::string& name,
                                                  std::chrono::milliseconds timeout) {
  if (job.world_size == 1) return {};
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
  try {
    return runtime::make_gloo_group(store, job.rank, job.world_size, timeout);
  } catch (const std::exception& error) {
    throw RuntimeFailure("group '" + name + "' can't be made: " + error.what());
  }
}

}  // namespace gradweave
