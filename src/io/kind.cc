#include "io/kind.h"

#include <algorithm>
#include <iterator>

#include "gradweave/error.h"

namespace gradweave {
namespace {

struct Mark {
  std::string_view key;  // of all kinds, or of all but those above it, only this one has the key
  FileKind kind;
};

constexpr Mark kMarks[] = {
    {"iteration_us", {"result", "scripts take this one"}},
    {"layers", {"workload", "--workload takes this one"}},
    {"period", {"plan", "--plan takes this one"}},
    {"spans", {"timeline", "'gradweave diff' takes this one"}},
    {"traceEvents", {"trace", "'gradweave import kineto' takes this one"}},
    {"loss", {"measurements", "--measurements takes this one"}},
    {"schemes", {"result", "scripts take this one"}},
};
constexpr FileKind kCluster = {"cluster", "--cluster takes this one"};
constexpr FileKind kLinkMeasurements = {"link measurements", "'gradweave fit' takes this one"};
constexpr FileKind kNcclTests = {"nccl-tests", "'gradweave import nccl-tests' takes this one"};

// Clusters and link measurements differ in their links: nullptr where they have none.
const FileKind* kind_of_links(const JsonNode& root) {
  const auto links = root.find("links");
  if (!links || !links->is_array() || links->size() == 0) return nullptr;
  const JsonNode first = links->item(0);
  return first.is_object() && first.find("measurements") ? &kLinkMeasurements : &kCluster;
}

std::string in_words(std::string_view kind) {
  return (kind == kNcclTests.name ? "an " : "a ") + std::string(kind) + " file";
}

}  // namespace

const FileKind* kind_of(const JsonNode& root) {
  if (!root.is_object()) return nullptr;
  if (root.find("args") && root.find("config") && root.find("results")) return &kNcclTests;
  const auto mark =
      std::ranges::find_if(kMarks, [&](const Mark& known) { return root.find(known.key).has_value(); });
  if (mark != std::end(kMarks)) return &mark->kind;
  return root.find("workers") ? kind_of_links(root) : nullptr;
}

const FileKind* kind_of(std::string_view text) {
  if (text.find("# nThread") != std::string_view::npos) return &kNcclTests;
  try {
    const JsonValue tree = parse_json(text);
    return kind_of(JsonNode(tree));
  } catch (const InvalidInput&) {
    return nullptr;
  }
}

void require_kind(const FileKind* kind, std::string_view wanted) {
  if (kind == nullptr || kind->name == wanted) return;
  throw InvalidInput("is " + in_words(kind->name), "",
                     "give " + in_words(wanted) + " here; " + std::string(kind->taker));
}

void require_kind(const JsonNode& root, std::string_view wanted) {
  require_kind(kind_of(root), wanted);
  require_version(root);
}

}  // namespace gradweave
