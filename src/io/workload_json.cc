#include "base/quoted.h"
#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/json_write.h"
#include "io/kind.h"

namespace gradweave {
namespace {

Tensor tensor_from(const JsonNode& node) {
  node.require_keys({"name", "numel", "dtype", "shape"});
  Tensor tensor{.name = node.at("name").text(), .numel = node.at("numel").integer(1, std::int64_t{1} << 53)};
  if (const auto dtype = node.find("dtype")) {
    const std::string name = dtype->text();
    const std::optional<DType> known = dtype_from_name(name);
    if (!known)
      dtype->fail("is " + in_quotes(name) + ", which is unknown",
                  "use a torch dtype such as float32 or bfloat16");
    tensor.dtype = *known;
  }
  if (const auto shape = node.find("shape")) {
    for (std::size_t d = 0; d < shape->size(); ++d)
      tensor.shape.push_back(shape->item(d).integer(1, std::int64_t{1} << 53));
  }
  return tensor;
}

Layer layer_from(const JsonNode& node) {
  node.require_keys({"name", "forward_us", "backward_us", "communication_us", "tensors"});
  Layer layer{.name = node.at("name").text(),
              .forward_ns = node.at("forward_us").duration(),
              .backward_ns = node.at("backward_us").duration()};
  if (const auto communication = node.find("communication_us"))
    layer.communication_ns = communication->duration();
  const auto tensors = node.find("tensors");
  if (tensors) {
    for (std::size_t t = 0; t < tensors->size(); ++t) layer.tensors.push_back(tensor_from(tensors->item(t)));
    if (layer.tensors.empty() && layer.communication_ns.value_or(0) > 0) {
      throw InvalidInput("takes time, but the layer has no tensors", node.at("communication_us").path(),
                         "leave out \"tensors\", or list what is communicated");
    }
  } else if (!layer.communication_ns) {
    node.at("tensors");  // is missing
  } else if (*layer.communication_ns > 0) {
    // Only times are known: an element for each nanosecond lets the layer be cut as finely as times are kept.
    layer.tensors.push_back({.name = layer.name, .numel = *layer.communication_ns});
  }
  return layer;
}

std::string text_of(const Layer& layer) {
  std::string text = "    {\"name\": " + json_string(layer.name) +
                     ", \"forward_us\": " + microseconds(layer.forward_ns) +
                     ", \"backward_us\": " + microseconds(layer.backward_ns);
  if (layer.communication_ns) text += ", \"communication_us\": " + microseconds(*layer.communication_ns);
  text += ", \"tensors\": [";
  for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
    const Tensor& tensor = layer.tensors[t];
    text += (t == 0 ? "" : ", ") + ("{\"name\": " + json_string(tensor.name)) +
            ", \"numel\": " + std::to_string(tensor.numel) + ", \"dtype\": \"" +
            std::string(name_of(tensor.dtype)) + "\"";
    std::string shape;
    for (const std::int64_t size : tensor.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    text += shape.empty() ? "}" : ", \"shape\": [" + shape + "]}";
  }
  return text + "]}";
}

}  // namespace

Workload parse_workload(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "workload");
  root.require_keys({"version", "name", "description", "source", "layers"});
  Workload workload{.name = root.at("name").text()};
  if (const auto description = root.find("description"))
    workload.description = description->text(kMaxTextBytes);
  if (const auto source = root.find("source")) workload.source = source->text(kMaxTextBytes);
  const JsonNode layers = root.at("layers");
  for (std::size_t l = 0; l < layers.size(); ++l) workload.layers.push_back(layer_from(layers.item(l)));
  check(workload);
  return workload;
}

std::string to_json(const Workload& workload) {
  std::string text = "{\n  \"version\": 1,\n  \"name\": " + json_string(workload.name) + ",\n";
  if (!workload.description.empty())
    text += "  \"description\": " + json_string(workload.description) + ",\n";
  if (!workload.source.empty()) text += "  \"source\": " + json_string(workload.source) + ",\n";
  text += "  \"layers\": [\n";
  for (std::size_t l = 0; l < workload.layers.size(); ++l) {
    text += text_of(workload.layers[l]) + (l + 1 < workload.layers.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

}  // namespace gradweave
