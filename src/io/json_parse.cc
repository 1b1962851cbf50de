// From text to tree: nlohmann's parser does the grammar and the UTF-8, this file the limits and the messages.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/quoted.h"
#include "gradweave/error.h"
#include "io/json_tree.h"

namespace gradweave {
namespace {

constexpr std::size_t kMaxDetailBytes = 300;

// Returns the parser's words without its own prefix; what is not ASCII (it may be what is wrong) as '?'.
std::string detail_of(std::string_view message) {
  const std::size_t column = message.find(", column ");
  const std::size_t colon = message.find(": ", column == std::string_view::npos ? 0 : column);
  if (colon != std::string_view::npos) message.remove_prefix(colon + 2);
  std::string detail(message.substr(0, kMaxDetailBytes));
  if (message.size() > kMaxDetailBytes) detail += "...";
  std::ranges::replace_if(
      detail, [](char c) { return c < ' ' || c > '~'; }, '?');
  return detail;
}

std::string line_and_column(std::string_view text, std::size_t position) {
  const std::string_view before = text.substr(0, position == 0 ? 0 : position - 1);
  const auto line = 1 + std::ranges::count(before, '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = start == std::string_view::npos ? before.size() + 1 : before.size() - start;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

std::string_view repeated_key(const JsonObject& object) {
  std::vector<std::string_view> keys;
  keys.reserve(object.size());
  for (const auto& [key, value] : object) keys.push_back(key);
  std::ranges::sort(keys);
  const auto twin = std::ranges::adjacent_find(keys);
  return twin == keys.end() ? std::string_view{} : *twin;
}

// Receives the parser's events and builds the tree. Pointers in `open_` stay valid: only the innermost
// container grows.
class TreeBuilder {
 public:
  explicit TreeBuilder(std::string_view text) : text_(text) {}
  JsonValue take() { return std::move(root_); }

  bool null() { return add({nullptr}); }
  bool boolean(bool value) { return add({value}); }
  bool number_integer(std::int64_t value) { return add({value}); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return add({JsonNumber{std::to_string(value)}});
    return add({static_cast<std::int64_t>(value)});
  }
  bool number_float(double, const std::string& text) { return add({JsonNumber{text}}); }
  bool string(std::string& value) { return add({std::move(value)}); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool key(std::string& key) {
    std::get<JsonObject>(open_.back()->value).push_back({std::move(key), {nullptr}});
    return true;
  }
  bool start_object(std::size_t) { return add({JsonObject{}}, true); }
  bool start_array(std::size_t) { return add({JsonArray{}}, true); }
  bool end_array() { return close(); }
  bool end_object() {
    const auto& object = std::get<JsonObject>(open_.back()->value);
    const std::string_view twin = repeated_key(object);
    const bool repeated = std::ranges::count(object, twin, &JsonMember::key) > 1;
    if (repeated)
      throw InvalidInput("the key " + in_quotes(twin) + " is given twice", path(), "keep one of them");
    return close();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    if (error.id == 406) {
      throw InvalidInput("a number is too large", line_and_column(text_, position),
                         "numbers must fit a double");
    }
    throw InvalidInput("is not JSON: " + detail_of(error.what()), line_and_column(text_, position),
                       "correct it, or write it again with the tool that made it");
  }

 private:
  bool add(JsonValue value, bool container = false) {
    if (++count_ > kMaxJsonValues) {
      throw InvalidInput("holds more than " + std::to_string(kMaxJsonValues) + " values", path(),
                         "split the input");
    }
    JsonValue* place = &root_;
    if (!open_.empty()) {
      if (auto* array = std::get_if<JsonArray>(&open_.back()->value)) {
        place = &array->emplace_back();
      } else {
        place = &std::get<JsonObject>(open_.back()->value).back().value;
      }
    }
    *place = std::move(value);
    if (container) {
      if (open_.size() >= kMaxJsonDepth) {
        throw InvalidInput("is nested more than " + std::to_string(kMaxJsonDepth) + " deep", path(),
                           "no file of Gradweave is nested that deep");
      }
      open_.push_back(place);
    }
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string path() const {
    std::string text;
    for (const JsonValue* value : open_) {
      if (const auto* array = std::get_if<JsonArray>(&value->value)) {
        if (!array->empty()) text += "[" + std::to_string(array->size() - 1) + "]";
      } else if (const auto& object = std::get<JsonObject>(value->value);
                 !object.empty() && value != open_.back()) {
        text += (text.empty() ? "" : ".") + shortened(object.back().key);
      }
    }
    return text;
  }

  std::string_view text_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  std::size_t count_ = 0;
};

}  // namespace

JsonValue parse_json(std::string_view text) {
  if (text.size() > kMaxJsonBytes) throw InvalidInput("is larger than 1 GiB", "", "split the input");
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw InvalidInput("is empty", "", "give a JSON object");
  }
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    throw InvalidInput("is UTF-16", "", "save it as UTF-8");
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw InvalidInput("is not JSON: there is a byte of value 0 at position " + std::to_string(zero), "",
                       "the file was cut off or overwritten: write it again");
  }
  TreeBuilder builder(text);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace gradweave
