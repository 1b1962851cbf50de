// The extension module gradweave._native: the core and the engine.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <tuple>

#include "gradweave/error.h"
#include "peers/link_groups.h"
#include "python/bind_control.h"
#include "python/bind_core.h"
#include "python/bind_islands.h"
#include "python/values.h"
#include "report/result_json.h"
#include "runtime/control_group.h"
#include "runtime/device_stopwatch.h"
#include "runtime/engine.h"
#include "runtime/fold.h"
#include "runtime/fork.h"
#include "runtime/gloo.h"
#include "runtime/gradient_sample.h"
#include "runtime/moment_share.h"
#include "runtime/passes.h"
#include "runtime/probe.h"
#include "runtime/rates.h"
#include "runtime/transport/transport.h"

namespace py = pybind11;

namespace gradweave::runtime {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using python::Given;

// An engine ends with Python's lock open: its threads may need it for their last op. In a process that was forked since it was
// made they do not exist: there it is left.
class EndUnlocked {
 public:
  void operator()(Engine* engine) const {
    if (fork_generation() != generation_) return;
    const py::gil_scoped_release unlocked;
    delete engine;
  }

 private:
  int generation_ = fork_generation();
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// A Python callable for use from C++; dropped with Python's lock held.
std::shared_ptr<py::function> held(py::function callable) {
  return {new py::function(std::move(callable)), [](py::function* f) {
            const py::gil_scoped_acquire lock;
            delete f;
          }};
}

Stepper stepper_of(py::function step) {
  return [step = held(std::move(step))](std::int32_t subset) {
    const py::gil_scoped_acquire lock;
    (*step)(subset);
  };
}

Unscaler unscaler_of(std::optional<py::function> factor) {
  if (!factor) return nullptr;
  return [factor = held(std::move(*factor))] {
    const py::gil_scoped_acquire lock;
    return (*factor)().cast<std::optional<at::Tensor>>().value_or(at::Tensor());
  };
}

// (place of the parameter, begin, end)
std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>> tuples_of(
    const std::vector<Slice>& slices) {
  std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>> tuples;
  for (const Slice& slice : slices) tuples.emplace_back(slice.parameter, slice.begin, slice.end);
  return tuples;
}

// An object of Python's with get(), which may return None, and set(gradient).
class PythonPlace : public GradientPlace {
 public:
  explicit PythonPlace(const py::object& object)
      : get_(held(object.attr("get"))), set_(held(object.attr("set"))) {}

  at::Tensor get() const override {
    const py::gil_scoped_acquire lock;
    return (*get_)().cast<std::optional<at::Tensor>>().value_or(at::Tensor());
  }
  void set(const at::Tensor& gradient) override {
    const py::gil_scoped_acquire lock;
    (*set_)(gradient.defined() ? std::optional(gradient) : std::nullopt);
  }

 private:
  std::shared_ptr<py::function> get_, set_;
};

std::vector<NamedParameter> parameters_of(const py::list& names, const py::list& tensors,
                                          const py::dict& places) {
  std::vector<NamedParameter> parameters;
  for (std::size_t i = 0; i < names.size(); ++i) {
    parameters.push_back({names[i].cast<std::string>(), tensors[i].cast<at::Tensor>()});
    if (const py::int_ number(i); places.contains(number))
      parameters.back().place = std::make_shared<PythonPlace>(places[number]);
  }
  return parameters;
}

Collective collective_called(const std::string& name) {
  for (const Collective each : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    if (name == name_of(each)) return each;
  }
  throw InvalidInput("unknown collective '" + name + "'", "collective",
                     "use all_reduce, reduce_scatter or all_gather");
}

void bind_transports(py::module_& module) {
  module.def("transports", [] {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const Transport& each : transports()) rows.emplace_back(each.name, each.summary);
    return rows;
  });
  module.def(
      "compressor_rates",
      [](const std::string& scheme, const std::map<std::string, std::string>& options,
         const Given<Workload>& workload, int world_size, c10::Device device) {
        std::map<std::string, std::pair<double, double>> found;
        for (const auto& [name, rate] : compressor_rates(scheme, options, *workload, world_size, device))
          found[name] = {rate.encode_us_per_byte, rate.decode_us_per_byte};
        return found;
      },
      Unlocked());
  module.def("transport_for", [](const std::string& backend, const std::string& collective,
                                 c10::ScalarType dtype, int world) {
    return std::string(choose(backend_called(backend), collective_called(collective), dtype, world).name);
  });
  module.def(
      "run_collective",
      [](const Group& group, const at::Tensor& flat, const std::string& collective, std::size_t sequence,
         double timeout_s, const std::optional<std::string>& transport) {
        const Call call{.group = *group,
                        .flat = flat.detach(),
                        .collective = collective_called(collective),
                        .sequence = sequence,
                        .timeout = milliseconds_of(timeout_s)};
        if (!transport) return start(call)->wait();
        const auto found = std::ranges::find(transports(), *transport, &Transport::name);
        if (found == transports().end()) {
          throw InvalidInput("unknown transport '" + *transport + "'", "transport", "see transports()");
        }
        found->start(call, backend_of(*group, flat.device()))->wait();
      },
      py::arg("group"), py::arg("flat"), py::arg("collective"), py::arg("sequence"), py::arg("timeout_s"),
      py::arg("transport") = py::none(), Unlocked());
  module.def(
      "measure_links",
      [](const std::vector<std::pair<std::string, Group>>& links, int workers, const std::string& description,
         double seconds, double startup_us, double us_per_byte) {
        const Probe probe{.seconds = seconds, .startup_us = startup_us, .us_per_byte = us_per_byte};
        ClusterMeasurements measured = nothing_measured(workers, description);
        for (const auto& [name, group] : links)
          measured.links.push_back(measure_link(name, group, c10::kCPU, probe).link);
        ClusterFit fit = fit_cluster(measured);
        std::vector<double> residuals;
        for (const FittedLine& line : fit.lines) {
          if (line.collective == Collective::kAllReduce) residuals.push_back(line.fit.residual);
        }
        return std::pair(std::move(fit.cluster), residuals);
      },
      py::arg("links"), py::arg("workers"), py::arg("description"), py::arg("seconds"), py::arg("startup_us"),
      py::arg("us_per_byte"), Unlocked());
  py::class_<Computing>(module, "Computing").def(py::init<>());
}

void bind_profile(py::module_& module) {
  using run::LayerTimer;
  py::class_<LayerTimer>(module, "LayerTimer")
      .def(py::init([](std::size_t layers, std::int64_t iterations, c10::Device device) {
             auto timer = std::make_unique<LayerTimer>(stopwatch_of(device));
             timer->reset(layers);
             timer->begin_profile(iterations);
             return timer;
           }),
           py::arg("layers"), py::arg("iterations"), py::arg("device"))
      .def("begin_iteration", &LayerTimer::begin_iteration)
      .def("forward_begins", &LayerTimer::forward_begins)
      .def("layer_started", &LayerTimer::layer_started)
      .def("backward_begins", &LayerTimer::backward_begins)
      .def("gradient_came", &LayerTimer::gradient_came)
      .def("backward_ended", &LayerTimer::backward_ended)
      .def("iteration_ended", &LayerTimer::iteration_ended, Unlocked())
      .def("times", [](LayerTimer& timer) {
        run::LayerTimes times = timer.end_profile();
        return std::tuple(std::move(times.forward_ns), std::move(times.backward_ns), times.rest_ns);
      });
}

void bind_passes(py::module_& module) {
  module.def("mean_over_ranks", &mean_over_ranks, Unlocked());
  module.def("checksum", &checksum_of, Unlocked());
}

void bind_peers(py::module_& module) {
  py::class_<Peers, std::shared_ptr<Peers>>(module, "Peers")
      .def(py::init([](const std::optional<c10::intrusive_ptr<c10d::Store>>& store, int rank, int world_size,
                       double timeout_s) {
             return std::make_shared<Peers>(store.value_or(c10::intrusive_ptr<c10d::Store>()), rank,
                                            world_size, milliseconds_of(timeout_s));
           }),
           py::arg("store"), py::arg("rank"), py::arg("world_size"), py::arg("timeout_s"))
      .def(
          "agree",
          [](Peers& peers, const std::string& what, const std::string& post, double timeout_s,
             const std::string& remedy) {
            return peers.agree(what, post, milliseconds_of(timeout_s), remedy);
          },
          py::arg("what"), py::arg("post"), py::arg("timeout_s"), py::arg("remedy") = "", Unlocked())
      .def(
          "give_up",
          [](Peers& peers, const std::string& what, double after_s, const std::string& cause) {
            return peers.give_up(what, milliseconds_of(after_s), cause);
          },
          py::arg("what"), py::arg("after_s"), py::arg("cause"), Unlocked())
      .def_property_readonly("verdict", &Peers::verdict)
      .def_property_readonly(  // as time.monotonic() tells it
          "moved_s",
          [](const Peers& peers) {
            return std::chrono::duration<double>(peers.moved().time_since_epoch()).count();
          })
      .def("report", &Peers::report, py::arg("error"), Unlocked())
      .def(
          "dump_to",
          [](Peers& peers, const std::string& folder, int rank) { peers.dump().open(folder, rank); },
          py::arg("folder"), py::arg("rank"))
      .def("end", &Peers::end)
      .def("close", &Peers::close, Unlocked());
  module.def(
      "link_groups",
      [](const std::vector<std::pair<std::vector<int>, std::string>>& ranks) {
        std::vector<peers::Holding> holdings;
        for (const auto& [with, part] : ranks) holdings.push_back({with, part});
        return peers::link_groups(holdings);
      },
      py::arg("ranks"), "By rank, (ranks that it shards with, its part): the ranks that hold the same part.");
  module.def("is_gloo", &is_gloo, py::arg("group"), py::arg("device"));
  module.def(
      "make_gloo_group",
      [](Peers& peers, const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
         double timeout_s, std::string interface, const std::optional<Group>& like, c10::Device device) {
        return make_gloo_group(
            peers, store, rank, world_size, milliseconds_of(timeout_s),
            {.interface = std::move(interface), .like = like.value_or(Group()), .device = device});
      },
      py::arg("peers"), py::arg("store"), py::arg("rank"), py::arg("world_size"), py::arg("timeout_s"),
      py::arg("interface") = "", py::arg("like") = py::none(), py::arg("device") = c10::Device(c10::kCPU),
      Unlocked());
  py::class_<ControlGroup, std::shared_ptr<ControlGroup>>(module, "ControlGroup")
      .def(py::init([](std::shared_ptr<Peers> peers, const std::optional<Group>& messages,
                       const std::optional<Group>& data, c10::Device device) {
             return std::make_shared<ControlGroup>(std::move(peers), messages.value_or(Group()),
                                                   data.value_or(Group()), device);
           }),
           py::arg("peers"), py::arg("messages"), py::arg("data"), py::arg("device"))
      .def("largest", &ControlGroup::largest, py::arg("values"), py::arg("what"), Unlocked())
      .def("of_all", &ControlGroup::of_all, py::arg("values"), py::arg("what"), Unlocked())
      .def("broadcast", &ControlGroup::broadcast, py::arg("tensors"), py::arg("what"), Unlocked())
      .def("average", &ControlGroup::average, py::arg("tensors"), py::arg("what"), Unlocked());
  py::class_<GradientNoise>(module, "GradientNoise")
      .def(py::init<>())
      .def_readwrite("signal", &GradientNoise::signal)
      .def_readwrite("noise", &GradientNoise::noise)
      .def(
          "add",
          [](GradientNoise& noise, double of_mean, double of_each, int parts, double iterations) {
            noise.add(GradientNoise::of(of_mean, of_each, parts), iterations);
          },
          py::arg("squares_of_mean"), py::arg("mean_of_squares"), py::arg("parts"), py::arg("iterations"))
      .def("share", &GradientNoise::share, py::arg("parts"));
  py::class_<GradientSample>(module, "GradientSample")
      .def(py::init<const std::vector<std::int64_t>&, std::int64_t>(), py::arg("elements"), py::arg("most"))
      .def("take", &GradientSample::take, py::arg("parameter"), py::arg("begin"), py::arg("gradient"),
           Unlocked())
      .def(
          "read",
          [](GradientSample& sample) {
            sample.copy();
            const at::Tensor values = sample.values();
            return values.defined() ? values : at::zeros({sample.size()}, at::kFloat);
          },
          Unlocked());
  py::class_<MomentShare>(module, "MomentShare")
      .def(py::init<std::shared_ptr<ControlGroup>, int, const std::vector<std::int64_t>&>(),
           py::arg("control"), py::arg("ranks"), py::arg("elements"))
      .def_property_readonly("share", &MomentShare::share)
      .def_property_readonly("samples", &MomentShare::samples)
      .def("take", &MomentShare::take, py::arg("parameter"), py::arg("begin"), py::arg("gradient"),
           Unlocked())
      .def("iteration_ended", &MomentShare::iteration_ended, Unlocked())
      .def("state", &MomentShare::state, Unlocked())
      .def("restore", &MomentShare::restore, py::arg("state"));
  // Objects whose threads a forked process lacks must not be destroyed there.
  module.def("keep_forever", [](py::object object) { object.release(); });
}

// A question to the run, asked of the engine.
template <typename Result>
auto of_run(Result (run::Run::*question)() const) {
  return [question](const Engine& engine) { return engine.run(question); };
}

auto of_steps(bool run::StepPoints::*question) {
  return [question](const Engine& engine) { return engine.run(&run::Run::steps).*question; };
}

Level level_called(const std::string& name) {
  return name == "inside" ? Level::kInside : name == "between" ? Level::kBetween : Level::kAll;
}

void bind_engine(py::module_& module) {
  py::class_<Emulation, std::shared_ptr<Emulation>>(module, "Emulation")
      .def(py::init<>())
      .def("set", &Emulation::set);
  py::class_<LinkSpec>(module, "LinkSpec")
      .def(py::init([](std::string name, const std::optional<Group>& group,
                       std::shared_ptr<Emulation> emulation, std::function<Group()> make_control,
                       const std::string& level, int shard, int shards) {
             return LinkSpec{.name = std::move(name),
                             .group = group.value_or(Group()),
                             .emulation = std::move(emulation),
                             .make_control = std::move(make_control),
                             .control = {},
                             .level = level_called(level),
                             .shard = shard,
                             .shards = shards};
           }),
           py::arg("name"), py::arg("group") = py::none(), py::arg("emulation") = py::none(),
           py::arg("make_control") = py::none(), py::arg("level") = "all", py::arg("shard") = 0,
           py::arg("shards") = 1);
  py::class_<Engine, std::unique_ptr<Engine, EndUnlocked>>(module, "Engine")
      .def(py::init([](const py::list& names, const py::list& tensors, std::vector<LinkSpec> links,
                       const std::optional<Group>& control, std::shared_ptr<Peers> peers, int world_size,
                       double timeout_s, bool check, std::optional<bool> find_unused, py::function step,
                       const py::dict& places) {
             EngineOptions options;
             options.link.timeout = milliseconds_of(timeout_s);
             options.link.check = check;
             if (find_unused)
               options.find_unused = *find_unused ? run::FindUnused::kOn : run::FindUnused::kOff;
             return std::unique_ptr<Engine, EndUnlocked>(new Engine(
                 parameters_of(names, tensors, places), std::move(links), control.value_or(Group()),
                 std::move(peers), world_size, options, stepper_of(std::move(step))));
           }),
           py::arg("names"), py::arg("tensors"), py::arg("links"), py::arg("control"), py::arg("peers"),
           py::arg("world_size"), py::arg("timeout_s"), py::arg("check"), py::arg("find_unused"),
           py::arg("step"), py::arg("places") = py::dict())
      .def(
          "install",
          [](Engine& engine, const Given<Plan>& plan, const Given<Workload>& workload,
             const std::optional<StateTensors::Map>& state, const std::string& refusal) {
            engine.install(*plan, *workload, state ? &*state : nullptr, refusal);
          },
          py::arg("plan"), py::arg("workload"), py::arg("state") = py::none(), py::arg("refusal") = "",
          Unlocked())
      .def("state", &Engine::state, Unlocked())
      .def(
          "play",
          [](Engine& engine, const Given<Plan>& plan, const Given<Workload>& workload,
             const std::vector<StateTensors::Map>& states,
             std::size_t rank) { engine.play(*plan, *workload, states, rank); },
          py::arg("plan"), py::arg("workload"), py::arg("states"), py::arg("rank"), Unlocked())
      .def("remains", &Engine::remains, Unlocked())
      .def("take_over", &Engine::take_over, Unlocked())
      .def("subset", [](const Engine& engine, std::int32_t id) { return engine.subset(id).parameters; })
      .def("subset_slices",
           [](const Engine& engine, std::int32_t id) { return tuples_of(engine.subset(id).slices); })
      .def_property_readonly("slices", [](const Engine& engine) { return tuples_of(engine.slices()); })
      .def_property_readonly("stepped_locally", &Engine::stepped_locally)
      .def("forward_begins", &Engine::forward_begins)
      .def("forward_start", &Engine::forward_start, Unlocked())
      .def("forward_comes", &Engine::forward_comes, Unlocked())
      .def("forward_end", &Engine::forward_end, Unlocked())
      .def("backward_start", &Engine::backward_start, Unlocked())
      .def("gradient_came", &Engine::on_gradient, Unlocked())
      .def("end_iteration", &Engine::end_iteration, Unlocked())
      .def("skip", &Engine::skip, Unlocked())
      .def("drain", &Engine::drain, py::arg("what"), Unlocked())
      .def("synchronize", &Engine::synchronize, Unlocked())
      .def("unhook", &Engine::unhook)
      .def(
          "close",
          [](Engine& engine, std::optional<double> patience_s) {
            patience_s ? engine.close(milliseconds_of(*patience_s)) : engine.close();
          },
          py::arg("patience_s") = py::none(), Unlocked())
      .def(
          "fail",
          [](Engine& engine, const std::string& what, double after_s, const std::string& cause) {
            engine.fail(what, milliseconds_of(after_s), cause);
          },
          Unlocked())
      .def("coming_gradients", &Engine::coming_gradients, Unlocked())
      .def("set_unscaler",
           [](Engine& engine, std::optional<py::function> factor) {
             engine.set_unscaler(unscaler_of(std::move(factor)));
           })
      .def("set_pause", &Engine::set_pause)
      .def("set_interrupt", &Engine::set_interrupt)
      .def("forward_layers", of_run(&run::Run::forward_layers))
      .def("set_timeline", [](Engine& engine, bool on) { engine.run(&run::Run::set_timeline, on); })
      .def("take_timeline", &Engine::take_timeline, Unlocked())
      .def_property("communicating", of_run(&run::Run::communicating),
                    [](Engine& engine, bool on) { engine.run(&run::Run::set_communicating, on); })
      .def_property_readonly("installed", of_run(&run::Run::installed))
      .def_property_readonly("reduced", of_run(&run::Run::reduced))
      .def_property_readonly("accumulates", of_run(&run::Run::accumulates))
      .def_property_readonly("taken_away", of_run(&run::Run::taken_away))
      .def_property_readonly("overflowed", of_run(&run::Run::overflowed))
      .def_property_readonly("partial_steps", of_steps(&run::StepPoints::partial))
      .def_property_readonly("steps_in_backward", of_steps(&run::StepPoints::in_backward))
      .def_property_readonly("steps_in_forward", of_steps(&run::StepPoints::in_forward))
      .def_property_readonly("synchronous", of_steps(&run::StepPoints::synchronous))
      .def_property_readonly("iteration", of_run(&run::Run::iteration))
      .def_property_readonly("counters", [](const Engine& engine) {
        const Counters counters = engine.counters();
        py::dict result;
        result["iterations"] = counters.iterations;
        result["updates"] = counters.updates;
        result["ops"] = counters.ops;
        result["bytes"] = counters.bytes;
        result["exposed_ns"] = counters.exposed_ns;
        result["waits"] = counters.waits;
        result["buffer_bytes"] = counters.buffer_bytes;
        return result;
      });
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  py::module_::import("torch");  // what is bound here uses classes that torch makes when it is imported
  python::bind_core(module);
  bind_transports(module);
  bind_profile(module);
  bind_passes(module);
  bind_peers(module);
  bind_engine(module);
  python::bind_control(module);
  python::bind_islands(module);
}

}  // namespace gradweave::runtime
