// JSON text as a tree, read with limits, and checked access to it that knows where it stands in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gradweave/decimal.h"

namespace gradweave {

struct JsonValue;
struct JsonMember;

// A number that is not an int64, as it is written: no digit is lost before it is known what the number means.
struct JsonNumber {
  std::string text;
};

using JsonArray = std::vector<JsonValue>;
using JsonObject = std::vector<JsonMember>;  // in file order, keys distinct

struct JsonValue {
  std::variant<std::nullptr_t, bool, std::int64_t, JsonNumber, std::string, JsonArray, JsonObject> value;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

inline constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxJsonValues = 20'000'000;
inline constexpr std::size_t kMaxJsonDepth = 32;
inline constexpr std::size_t kMaxNameBytes = 4096;  // names come back in error messages
inline constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20;

// Returns the tree of `text`.
// Errors: InvalidInput with line and column for what is not JSON (RFC 8259, UTF-8), with the key for a
// repeated key, a number that no double can hold, or a text over the limits above. O(size).
JsonValue parse_json(std::string_view text);

// A value and the way to it. Refers to its parent node and to the tree, so both must outlive it: name the
// parent before keeping a child. Every accessor throws InvalidInput with the key path, the fault and a
// remedy.
class JsonNode {
 public:
  explicit JsonNode(const JsonValue& root) : value_(&root) {}

  // Returns the key path, "layers[3].tensors[0].numel"; empty for the root.
  std::string path() const;
  [[noreturn]] void fail(std::string_view what, std::string_view remedy = {}) const;

  bool is_null() const;
  bool is_array() const;
  bool is_object() const;
  bool boolean() const;
  std::int64_t integer(std::int64_t minimum, std::int64_t maximum) const;
  std::int32_t integer32() const;
  double number() const;
  // An exact decimal, not negative.
  Decimal decimal() const;
  // A time written in microseconds, rounded to the nearest nanosecond, halves away from zero.
  Nanoseconds microseconds() const;
  Nanoseconds duration() const;  // the same, not negative
  std::string text(std::size_t max_bytes = kMaxNameBytes) const;
  // Returns the index of the text in `names`.
  std::size_t one_of(std::span<const std::string_view> names) const;

  // Arrays.
  std::size_t size() const;
  JsonNode item(std::size_t index) const;

  // Objects. require_keys() throws for a key that is none of `known`.
  void require_keys(std::initializer_list<std::string_view> known) const;
  std::optional<JsonNode> find(std::string_view key) const;
  JsonNode at(std::string_view key) const;  // throws if it is missing
  std::vector<JsonNode> members() const;
  std::string key() const;  // of a member; at most kMaxNameBytes

 private:
  JsonNode(const JsonValue& value, const JsonNode* parent, std::string_view key, std::size_t index)
      : value_(&value), parent_(parent), key_(key), index_(index) {}
  const JsonArray& array() const;
  const JsonObject& object() const;
  std::string number_text() const;
  [[noreturn]] void fail_type(std::string_view expected) const;

  const JsonValue* value_;
  const JsonNode* parent_ = nullptr;
  std::string_view key_;
  std::size_t index_ = 0;
};

// Throws unless `root` has version 1.
void require_version(const JsonNode& root);

}  // namespace gradweave
