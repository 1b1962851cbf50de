// Checked access to the tree.
#include <algorithm>
#include <charconv>

#include "base/names.h"
#include "base/quoted.h"
#include "gradweave/error.h"
#include "io/json_tree.h"

namespace gradweave {
namespace {

// digits * 10^exponent, without leading zeros; no digits: zero.
struct Digits {
  bool negative = false;
  std::string digits;
  std::int64_t exponent = 0;
};

// `text` is a JSON number.
Digits digits_of(std::string_view text) {
  Digits result;
  bool fraction = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '-') {
      result.negative = true;
    } else if (c == '.') {
      fraction = true;
    } else if (c == 'e' || c == 'E') {
      const char* first = text.data() + i + 1;
      if (*first == '+') ++first;
      std::int64_t exponent = 0;
      // An exponent beyond int64 belongs to a zero or to a number that rounds to zero: larger ones were
      // refused.
      const auto parsed = std::from_chars(first, text.data() + text.size(), exponent);
      if (parsed.ec == std::errc::result_out_of_range) return {};
      result.exponent += exponent;
      break;
    } else {
      if (c != '0' || !result.digits.empty()) result.digits += c;
      if (fraction) --result.exponent;
    }
  }
  return result;
}

// Returns the number rounded to an integer, halves away from zero, or nothing if it leaves int64.
std::optional<std::int64_t> rounded(const Digits& number) {
  const auto length = static_cast<std::int64_t>(number.digits.size());
  if (length == 0 || number.exponent < -length) return 0;
  if (number.exponent > 19 || length + number.exponent > 19) return std::nullopt;
  const std::int64_t whole = length + std::min<std::int64_t>(number.exponent, 0);
  std::string kept = number.digits.substr(0, static_cast<std::size_t>(whole));
  if (number.exponent > 0) kept.append(static_cast<std::size_t>(number.exponent), '0');
  std::uint64_t value = 0;
  std::from_chars(kept.data(), kept.data() + kept.size(), value);
  if (whole < length && number.digits[static_cast<std::size_t>(whole)] >= '5') ++value;
  constexpr auto kLargest = static_cast<std::uint64_t>(INT64_MAX);
  if (value > kLargest + (number.negative ? 1 : 0)) return std::nullopt;
  return static_cast<std::int64_t>(number.negative ? std::uint64_t{0} - value : value);
}

// Returns the integer that `text`, a JSON number such as 5e3 or 5000.0, is; nothing if it is none or leaves
// int64.
std::optional<std::int64_t> whole(std::string_view text) {
  Digits number = digits_of(text);
  while (number.digits.ends_with('0')) {
    number.digits.pop_back();
    ++number.exponent;
  }
  if (number.digits.empty()) {  // zero, or a number too small for digits_of()
    const bool zero =
        text.substr(0, text.find_first_of("eE")).find_first_of("123456789") == std::string_view::npos;
    return zero ? std::optional<std::int64_t>(0) : std::nullopt;
  }
  return number.exponent < 0 ? std::nullopt : rounded(number);
}

}  // namespace

std::string JsonNode::path() const {
  if (parent_ == nullptr) return {};
  std::string text = parent_->path();
  if (key_.data() == nullptr) return text + "[" + std::to_string(index_) + "]";
  return text + (text.empty() ? "" : ".") + shortened(key_);
}

std::string JsonNode::key() const {
  if (key_.size() > kMaxNameBytes)
    fail("has a key longer than " + std::to_string(kMaxNameBytes) + " bytes", "shorten it");
  return std::string(key_);
}

void JsonNode::fail(std::string_view what, std::string_view remedy) const {
  throw InvalidInput(what, path(), remedy);
}

void JsonNode::fail_type(std::string_view expected) const {
  static constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                                "a string", "an array",  "an object"};
  const std::string got(kNames[value_->value.index()]);
  fail("is " + got, "give " + std::string(expected));
}

bool JsonNode::is_null() const { return std::holds_alternative<std::nullptr_t>(value_->value); }

bool JsonNode::is_object() const { return std::holds_alternative<JsonObject>(value_->value); }

bool JsonNode::is_array() const { return std::holds_alternative<JsonArray>(value_->value); }

bool JsonNode::boolean() const {
  if (const bool* value = std::get_if<bool>(&value_->value)) return *value;
  fail_type("true or false");
}

std::int64_t JsonNode::integer(std::int64_t minimum, std::int64_t maximum) const {
  std::optional<std::int64_t> value;
  if (const auto* plain = std::get_if<std::int64_t>(&value_->value)) value = *plain;
  if (const auto* written = std::get_if<JsonNumber>(&value_->value)) value = whole(written->text);
  const std::string range = "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum);
  if (!value) fail_type(range);
  if (*value < minimum || *value > maximum) fail("is out of range", "give " + range);
  return *value;
}

std::int32_t JsonNode::integer32() const { return static_cast<std::int32_t>(integer(INT32_MIN, INT32_MAX)); }

std::string JsonNode::number_text() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_->value)) return std::to_string(*value);
  if (const auto* value = std::get_if<JsonNumber>(&value_->value)) return value->text;
  fail_type("a number");
}

double JsonNode::number() const {
  const std::string text = number_text();
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(),
                  value);  // a value below the smallest double stays 0
  return value;
}

Decimal JsonNode::decimal() const {
  Digits number = digits_of(number_text());
  if (number.digits.empty()) return {};
  if (number.negative) fail("is negative", "give a number of 0 or more");
  while (number.digits.back() == '0') {
    number.digits.pop_back();
    ++number.exponent;
  }
  const auto length = static_cast<std::int64_t>(number.digits.size());
  if (length > 18 || number.exponent < -40) return decimal_from_double(this->number(), path());
  if (length + std::max<std::int64_t>(number.exponent, 0) > 18)
    fail("is too large", "give a number below 10^18");
  Decimal result;
  std::from_chars(number.digits.data(), number.digits.data() + number.digits.size(), result.mantissa);
  for (; number.exponent > 0; --number.exponent) result.mantissa *= 10;
  result.scale = static_cast<std::int32_t>(-number.exponent);
  return result;
}

Nanoseconds JsonNode::microseconds() const {
  Digits number = digits_of(number_text());
  number.exponent += 3;
  const std::optional<std::int64_t> time = rounded(number);
  if (!time) fail("is out of range", "times must fit 63 bits of nanoseconds");
  return *time;
}

Nanoseconds JsonNode::duration() const {
  const Digits number = digits_of(number_text());
  if (number.negative && !number.digits.empty())
    fail("is negative", "give a time in microseconds, 0 or more");
  return microseconds();
}

std::string JsonNode::text(std::size_t max_bytes) const {
  const auto* value = std::get_if<std::string>(&value_->value);
  if (value == nullptr) fail_type("a string");
  if (value->size() > max_bytes) fail("is longer than " + std::to_string(max_bytes) + " bytes", "shorten it");
  return *value;
}

std::size_t JsonNode::one_of(std::span<const std::string_view> names) const {
  const std::string word = text(kMaxTextBytes);
  const auto found = std::ranges::find(names, word);
  if (found == names.end()) {
    fail("is " + in_quotes(word) + ", which is unknown", choice_of(word, names, "use one of"));
  }
  return static_cast<std::size_t>(found - names.begin());
}

const JsonArray& JsonNode::array() const {
  if (const auto* value = std::get_if<JsonArray>(&value_->value)) return *value;
  fail_type("an array");
}

const JsonObject& JsonNode::object() const {
  if (const auto* value = std::get_if<JsonObject>(&value_->value)) return *value;
  fail_type("an object");
}

std::size_t JsonNode::size() const { return array().size(); }

JsonNode JsonNode::item(std::size_t index) const { return JsonNode(array()[index], this, {}, index); }

void JsonNode::require_keys(std::initializer_list<std::string_view> keys) const {
  const std::span<const std::string_view> known(keys.begin(), keys.size());
  for (const auto& [key, value] : object()) {
    if (std::ranges::find(known, key) == known.end()) {
      JsonNode(value, this, key, 0).fail("is an unknown key", choice_of(key, known, "the keys here are"));
    }
  }
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const JsonObject& members = object();
  const auto found = std::ranges::find(members, key, &JsonMember::key);
  if (found == members.end()) return std::nullopt;
  return JsonNode(found->value, this, found->key, 0);
}

JsonNode JsonNode::at(std::string_view key) const {
  if (const std::optional<JsonNode> found = find(key)) return *found;
  JsonNode(*value_, this, key, 0).fail("is missing", "add it");
}

std::vector<JsonNode> JsonNode::members() const {
  std::vector<JsonNode> nodes;
  for (const auto& [key, value] : object()) nodes.push_back(JsonNode(value, this, key, 0));
  return nodes;
}

void require_version(const JsonNode& root) {
  const JsonNode version = root.at("version");
  if (version.integer(INT64_MIN, INT64_MAX) != 1) {
    version.fail("is unknown", "this program reads version 1: write the file again, or use a newer program");
  }
}

}  // namespace gradweave
