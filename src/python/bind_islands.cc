#include "python/bind_islands.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <iterator>

#include "gradweave/error.h"
#include "islands/member.h"

namespace py = pybind11;

namespace gradweave::python {
namespace {

using islands::Command;
using islands::Member;
using islands::StepReport;
using Unlocked = py::call_guard<py::gil_scoped_release>;

std::span<float> floats_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kFloat || !tensor.is_contiguous())
    throw InvalidInput("is no contiguous float32 tensor in the processor's memory", "islands: values");
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// Keeps the storage, not the tensor: who ends with it last holds no lock of Python's.
islands::Extra extra_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kByte || !tensor.is_contiguous())
    throw InvalidInput("is no contiguous tensor of bytes in the processor's memory", "islands: extra");
  return {std::make_shared<const c10::Storage>(tensor.storage()),
          {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

islands::MemberOptions options_of(const std::string& meeting, const std::string& key,
                                  const std::string& island, const std::vector<std::string>& trains, int rank,
                                  int ranks, int exchanging, const std::string& listen, double silence_s,
                                  std::int64_t count, std::vector<std::int64_t> fragments,
                                  const std::string& compressor, std::optional<codec::Outer> outer,
                                  std::optional<std::vector<std::int64_t>> gradients) {
  islands::MemberOptions options{
      .key = islands::read_key_file(key),
      .meeting = islands::parse_address(meeting, "gradweave.wrap(islands=)"),
      .island = island,
      .trains = trains,
      .rank = rank,
      .ranks = ranks,
      .exchanging = exchanging,
      .listen = islands::parse_address(listen, "gradweave.wrap(listen=)"),
      .silence = std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * silence_s)),
      .part = {.count = count,
               .fragments = std::move(fragments),
               .format = codec::format_of(compressor),
               .outer = outer},
      .gradients = std::move(gradients)};
  if (!compressor.empty() && !options.part.format)
    throw InvalidInput("is '" + compressor + "'", "compressor between islands",
                       "give int8, int4, int2, ef_signsgd or none");
  return options;
}

}  // namespace

void bind_islands(py::module_& module) {
  py::class_<Command>(module, "IslandCommand")
      .def_property_readonly(
          "what", [](const Command& command) { return std::string(1, static_cast<char>(command.what)); })
      .def_readonly("number", &Command::number)
      .def_readonly("other", &Command::other)
      .def_readonly("members", &Command::members)
      .def_readonly("landed", &Command::landed)
      .def_readonly("last", &Command::last);
  py::class_<islands::Island>(module, "Island")
      .def_readonly("name", &islands::Island::name)
      .def_readonly("ranks", &islands::Island::ranks)
      .def_readonly("since", &islands::Island::since);
  py::class_<Member>(module, "IslandMember")
      .def(py::init([](const std::string& meeting, const std::string& key, const std::string& island,
                       const std::vector<std::string>& trains, int rank, int ranks, int exchanging,
                       const std::string& listen, double silence_s, const at::Tensor& values,
                       std::vector<std::int64_t> fragments, const std::string& compressor,
                       std::optional<std::pair<float, float>> outer,
                       std::optional<std::vector<std::int64_t>> gradients) {
             std::optional<codec::Outer> nesterov;
             if (outer) nesterov = {.momentum = outer->first, .learning_rate = outer->second};
             return std::make_unique<Member>(
                 options_of(meeting, key, island, trains, rank, ranks, exchanging, listen, silence_s,
                            values.numel(), std::move(fragments), compressor, nesterov, std::move(gradients)),
                 floats_of(values));
           }),
           py::arg("meeting"), py::arg("key"), py::arg("island"), py::arg("trains"), py::arg("rank"),
           py::arg("ranks"), py::arg("exchanging"), py::arg("listen"), py::arg("silence_s"),
           py::arg("values"), py::arg("fragments"), py::arg("compressor"), py::arg("outer"),
           py::arg("gradients"))
      .def_property_readonly("port", &Member::port)
      .def("join", &Member::join, py::arg("addresses"))
      .def(
          "report",
          [](Member& member, int wants) { return member.report(static_cast<StepReport::Wants>(wants)); },
          py::arg("wants"), Unlocked())
      .def_property_readonly("text", [](const Member& member) { return py::bytes(member.text()); })
      .def(
          "proceed",
          [](Member& member, const std::vector<std::int64_t>& reports, const std::string& text) {
            return member.proceed(reports, text);
          },
          py::arg("reports"), py::arg("text"), Unlocked())
      .def_property(
          "turn", [](const Member& member) { return member.part().turn(); }, &Member::set_turn)
      .def(
          "begin",
          [](Member& member, const Command& command, double weight, const at::Tensor& values,
             const std::optional<at::Tensor>& sample) {
            const std::span<float> sampled = sample ? floats_of(*sample) : std::span<float>();
            member.begin(command, weight, floats_of(values), {sampled.begin(), sampled.end()});
          },
          py::arg("command"), py::arg("weight"), py::arg("values"), py::arg("sample"), Unlocked())
      .def(
          "land",
          [](Member& member, const at::Tensor& delta) {
            member.land(floats_of(delta));
            std::optional<std::tuple<double, double, int>> found;
            if (const auto sampled = member.part().sampled())
              found.emplace(sampled->of_mean, sampled->of_each, sampled->members);
            return found;
          },
          py::arg("delta"), Unlocked())
      .def("drop", &Member::drop, Unlocked())
      .def("begin_gradients", &Member::begin_gradients, py::arg("command"), Unlocked())
      .def(
          "supply",
          [](Member& member, std::size_t bucket, double weight, const at::Tensor& values) {
            member.supply(bucket, weight, floats_of(values));
          },
          py::arg("bucket"), py::arg("weight"), py::arg("values"), Unlocked())
      .def(
          "land_gradients",
          [](Member& member, const at::Tensor& means) { member.land_gradients(floats_of(means)); },
          py::arg("means"), Unlocked())
      .def(
          "set_anchor",
          [](Member& member, const at::Tensor& values) { member.set_anchor(floats_of(values)); },
          py::arg("values"), Unlocked())
      .def(
          "give",
          [](Member& member, const Command& command, const std::optional<at::Tensor>& values,
             const at::Tensor& extra) {
            member.give(command, values ? std::optional(floats_of(*values)) : std::nullopt, extra_of(extra));
          },
          py::arg("command"), py::arg("values"), py::arg("extra"), Unlocked())
      .def("alone_with", &Member::alone_with, py::arg("island"))
      .def("give_no_more", &Member::give_no_more, py::arg("island"), Unlocked())
      .def("take", &Member::take, py::arg("command"), Unlocked())
      .def(
          "train", [](Member& member, const at::Tensor& values) { return member.train(floats_of(values)); },
          py::arg("values"), Unlocked())
      .def(
          "copy_anchor",
          [](const Member& member, const at::Tensor& to) {
            std::ranges::copy(member.part().anchor(), floats_of(to).begin());
          },
          py::arg("to"))
      .def_property_readonly("extra",
                             [](const Member& member) {
                               const std::span<const std::byte> extra = member.part().extra();
                               at::Tensor copied = at::empty({std::ssize(extra)}, at::kByte);
                               std::ranges::copy(extra, static_cast<std::byte*>(copied.mutable_data_ptr()));
                               return copied;
                             })
      .def_property_readonly("bytes_sent", &Member::bytes_sent)
      .def_property_readonly("islands", &Member::islands)
      .def_property_readonly("epoch", &Member::epoch)
      .def_property_readonly("agreed", &Member::agreed)
      .def_property_readonly("deserted", &Member::deserted)
      .def_property_readonly("trouble", &Member::trouble);
}

}  // namespace gradweave::python
