#include "gradweave/json.h"
#include "io/json_tree.h"
#include "io/kind.h"

namespace gradweave {
namespace {

// A number, or both ends of what it lies between.
Range range_from(const JsonNode& node) {
  if (!node.is_array()) return {node.number(), node.number()};
  if (node.size() != 2) node.fail("has " + std::to_string(node.size()) + " numbers", "give [low, high]");
  const JsonNode low = node.item(0), high = node.item(1);
  return {low.number(), high.number()};
}

}  // namespace

Measurements parse_measurements(std::string_view text) {
  const JsonValue tree = parse_json(text);
  const JsonNode root(tree);
  require_kind(root, "measurements");
  root.require_keys({"version", "description", "loss", "lowest", "gradient_square", "noise_square", "batch",
                     "learning_rate", "momentum", "dampening", "nesterov", "curvature"});
  const auto range = [&](std::string_view key) { return range_from(root.at(key)); };
  const auto number = [&](std::string_view key, double otherwise) {
    const auto node = root.find(key);
    return node ? node->number() : otherwise;
  };
  Measurements measured{.loss = range("loss"),
                        .gradient_square = range("gradient_square"),
                        .noise_square = range("noise_square"),
                        .lowest = number("lowest", 0),
                        .learning_rate = root.at("learning_rate").number(),
                        .batch = root.at("batch").number(),
                        .rule = {number("momentum", 0), number("dampening", 0)},
                        .curvature = range("curvature")};
  if (const auto nesterov = root.find("nesterov")) measured.rule.nesterov = nesterov->boolean();
  if (const auto description = root.find("description")) description->text(kMaxTextBytes);
  check(measured);
  return measured;
}

}  // namespace gradweave
