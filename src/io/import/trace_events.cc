#include "io/import/trace_events.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "gradweave/error.h"
#include "io/kind.h"

namespace gradweave {
namespace {

constexpr std::size_t kTraceChunk = std::size_t{1} << 20;
constexpr std::size_t kMostTextKept = 1024;
constexpr int kEnd = -1;
constexpr char kStandardInput[] = "stdin";
constexpr char kCopyAgain[] = "copy the trace again, or unpack it";

// The file's bytes, unpacked.
class TraceBytes {
 public:
  // "-" is standard input.
  explicit TraceBytes(const std::filesystem::path& path)
      : path_(path == "-" ? kStandardInput : path.string()),
        file_(path == "-" ? gzdopen(::dup(STDIN_FILENO), "rb") : gzopen(path.c_str(), "rb")),
        chunk_(kTraceChunk) {
    if (!file_) {
      throw InvalidInput(std::string("cannot be read: ") + std::strerror(errno), path_,
                         "give the path of a trace");
    }
    gzbuffer(file_.get(), kTraceChunk / 4);
  }

  // Returns the next byte, or kEnd.
  int peek() { return at_ < end_ || refill() ? static_cast<unsigned char>(*at_) : kEnd; }
  void next() { ++at_; }

  // What has been read and not yet been taken; empty at the end.
  std::string_view rest() {
    return at_ < end_ || refill() ? std::string_view(at_, static_cast<std::size_t>(end_ - at_))
                                  : std::string_view();
  }
  void skip(std::size_t count) { at_ += count; }

  const std::string& name() const { return path_; }
  std::int64_t count() const { return count_; }
  bool cut() const { return cut_; }
  // Returns all bytes of the file; nothing if they are more than are kept.
  std::optional<std::string_view> whole() const {
    if (count_ > static_cast<std::int64_t>(chunk_.size())) return std::nullopt;
    return std::string_view(chunk_.data(), static_cast<std::size_t>(count_));
  }

 private:
  bool refill() {
    const int got = gzread(file_.get(), chunk_.data(), kTraceChunk);
    int error = Z_OK;
    const char* text = gzerror(file_.get(), &error);
    if (error == Z_BUF_ERROR) {
      cut_ = true;  // gzipped data that end in the middle: what there is counts
    } else if (got < 0) {
      throw InvalidInput("cannot be read after " + std::to_string(count_) + " bytes: " + text, path_,
                         kCopyAgain);
    }
    if (got <= 0) return false;
    count_ += got;
    at_ = chunk_.data();
    end_ = at_ + got;
    return true;
  }

  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::vector<char> chunk_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  std::int64_t count_ = 0;
  bool cut_ = false;
};

bool is_blank(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool ends_word(int c) { return c == kEnd || is_blank(c) || c == ',' || c == '}' || c == ']' || c == ':'; }

std::optional<double> real_from(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> whole_from(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error == std::errc{} && end == word.data() + word.size()) return value;
  const auto real = real_from(word);
  if (!real || std::abs(*real) > 9e18) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

// Microseconds, whose digits behind the point a double would lose for times since 1970.
std::optional<Nanoseconds> time_from(std::string_view word) {
  constexpr Nanoseconds kMostMicroseconds = 4'000'000'000'000'000;  // 2096 if since 1970; sums of two fit
  const std::size_t point = std::min(word.find('.'), word.size());
  const std::string_view fraction = word.substr(std::min(point + 1, word.size()));
  if (word.find_first_not_of("0123456789.-") != std::string_view::npos ||
      fraction.find('.') != std::string_view::npos) {
    const auto real = real_from(word);  // has an exponent, or is none
    if (!real || std::abs(*real) > static_cast<double>(kMostMicroseconds)) return std::nullopt;
    return std::llround(*real * 1000);
  }
  const auto whole = whole_from(word.substr(0, point));
  if (!whole || std::abs(*whole) > kMostMicroseconds) return std::nullopt;
  Nanoseconds below = 0;
  for (std::size_t i = 0; i < 3; ++i) below = below * 10 + (i < fraction.size() ? fraction[i] - '0' : 0);
  if (below < 0) return std::nullopt;
  return *whole * 1000 + (word.starts_with('-') ? -below : below);
}

// Reads values and events. Where the text is not what it should be, functions return false and leave the place.
class TraceParser {
 public:
  TraceParser(TraceBytes& bytes, const std::function<void(const TraceEvent&)>& on_event,
              const std::function<void(std::int64_t)>& on_bytes)
      : bytes_(bytes), on_event_(on_event), on_bytes_(on_bytes) {}

  TraceSummary read() {
    bool whole = document();
    while (!whole && find_event()) {
      ++summary_.damaged;
      whole = event(true) && events() && (!in_object_ || members());
    }
    summary_.truncated = !whole || bytes_.cut();
    summary_.packed_short = bytes_.cut();
    return summary_;
  }

  bool found_any() const { return found_; }

 private:
  int peek_solid() {
    int c = bytes_.peek();
    while (is_blank(c)) {
      bytes_.next();
      c = bytes_.peek();
    }
    return c;
  }

  bool take(char wanted) {
    if (peek_solid() != wanted) return false;
    bytes_.next();
    return true;
  }

  // A string, from its opening quote on. `text` may be null.
  bool string(std::string* text) {
    bytes_.next();
    if (text != nullptr) text->clear();
    for (;;) {
      const std::string_view rest = bytes_.rest();
      if (rest.empty()) return false;
      std::size_t stop = 0;
      while (stop < rest.size() && rest[stop] != '"' && rest[stop] != '\\') ++stop;
      keep(text, rest.substr(0, stop));
      bytes_.skip(stop);
      if (stop == rest.size()) continue;
      const bool closes = rest[stop] == '"';
      bytes_.next();
      if (closes) return true;
      const int escaped = bytes_.peek();
      if (escaped == kEnd) return false;
      bytes_.next();
      const char character = static_cast<char>(escaped);
      // Only what hides a quote is undone: a path of another system stays as it is.
      if (escaped != '"' && escaped != '\\' && escaped != '/') keep(text, "\\");
      keep(text, {&character, 1});
    }
  }

  static void keep(std::string* text, std::string_view more) {
    if (text != nullptr && text->size() < kMostTextKept)
      text->append(more.substr(0, kMostTextKept - text->size()));
  }

  // A number, or a word that stands for none, or a string that holds one; empty where the value is missing.
  bool scalar(std::string& word) {
    word.clear();
    int c = peek_solid();
    if (c == '"') return string(&word);
    if (c == '{' || c == '[') return skip_value();
    for (; !ends_word(c); c = bytes_.peek()) {
      if (word.size() < kMostTextKept) word.push_back(static_cast<char>(c));
      bytes_.next();
    }
    return c != kEnd;
  }

  bool skip_value() {
    const int c = peek_solid();
    if (c == '"') return string(nullptr);
    if (c != '{' && c != '[') return scalar(scratch_);
    bytes_.next();
    return skip_to_close();
  }

  // The rest of an object or an array that is open.
  bool skip_to_close() {
    for (int depth = 1; depth > 0;) {
      const std::string_view rest = bytes_.rest();
      if (rest.empty()) return false;
      const std::size_t stop = std::min(rest.find_first_of("\"{}[]"), rest.size());
      bytes_.skip(stop);
      if (stop == rest.size()) continue;
      if (rest[stop] == '"') {
        if (!string(nullptr)) return false;
        continue;
      }
      depth += rest[stop] == '{' || rest[stop] == '[' ? 1 : -1;
      bytes_.next();
    }
    return true;
  }

  bool is(std::string_view key) const { return std::string_view(key_) == key; }

  // Calls `value` for each member of an object whose opening brace was taken, the key being in key_.
  template <typename Value>
  bool each_member(Value value) {
    for (;;) {
      const int c = peek_solid();
      if (c == '}') {
        bytes_.next();
        return true;
      }
      if (c == ',') {
        bytes_.next();
        continue;
      }
      if (c != '"' || !string(&key_) || !take(':') || !value()) return false;
    }
  }

  bool document() {
    if (bytes_.rest().starts_with("\xEF\xBB\xBF")) bytes_.skip(3);
    if (take('[')) return events();
    in_object_ = take('{');
    return in_object_ && members();
  }

  bool members() {
    return each_member([this] {
      if (is("traceEvents") && take('[')) return events();
      if (is("distributedInfo") && take('{')) {
        return each_member([this] {
          if (!is("rank")) return skip_value();
          if (!scalar(scratch_)) return false;
          summary_.rank = whole_from(scratch_);
          return true;
        });
      }
      return skip_value();
    });
  }

  // The array of events, from behind its opening bracket, or any event of it.
  bool events() {
    for (;;) {
      if (take(']')) return true;
      if (take(',')) continue;
      if (!take('{') || !event(false)) return false;
    }
  }

  // An event from behind its opening brace; if `in_phase`, from behind its first key, "ph".
  bool event(bool in_phase) {
    found_ = true;
    if (on_bytes_ && bytes_.count() != told_) on_bytes_(told_ = bytes_.count());
    for (std::string* text : {&event_.category, &event_.name, &event_.dtype, &phase_, &begin_, &duration_})
      text->clear();
    event_.process = event_.thread = 0;
    event_.sequence_number = event_.forward_thread = event_.correlation = event_.numel = std::nullopt;
    if (in_phase && !(take(':') && scalar(phase_))) return false;
    if (!each_member([this] { return field(); })) return false;
    const auto begin = time_from(begin_), duration = time_from(duration_);
    if (phase_ == "X" && begin) {
      event_.begin = *begin;
      event_.end = *begin + std::max<Nanoseconds>(0, duration.value_or(0));
      on_event_(event_);
    }
    return true;
  }

  bool field() {
    if (is("ph")) return scalar(phase_);
    if (is("cat")) return scalar(event_.category);
    if (is("name")) return scalar(event_.name);
    if (is("ts")) return scalar(begin_);
    if (is("dur")) return scalar(duration_);
    if (is("pid")) return identity(event_.process);
    if (is("tid")) return identity(event_.thread);
    if (is("args") && take('{')) return each_member([this] { return argument(); });
    return skip_value();
  }

  bool argument() {
    if (is("Sequence number")) return whole(event_.sequence_number);
    if (is("Fwd thread id")) return whole(event_.forward_thread);
    if (is("correlation")) return whole(event_.correlation);
    if (is("Input Dims")) return first_dimensions();
    if (is("Input type")) {
      if (!take('[')) return skip_value();
      if (peek_solid() == '"' && !string(&event_.dtype)) return false;
      return skip_to_close();
    }
    return skip_value();
  }

  bool whole(std::optional<std::int64_t>& number) {
    if (!scalar(scratch_)) return false;
    number = whole_from(scratch_);
    return true;
  }

  bool identity(std::int64_t& number) {
    if (!scalar(scratch_)) return false;
    const auto value = whole_from(scratch_);
    number = value ? *value : static_cast<std::int64_t>(std::hash<std::string>{}(scratch_));
    return true;
  }

  // [[2, 3], ...] is 6 elements, [[], ...] one; anything else is left open.
  bool first_dimensions() {
    if (!take('[')) return skip_value();
    if (!take('[')) return skip_to_close();
    std::int64_t product = 1;
    for (;;) {
      const int c = peek_solid();
      if (c == '[' || c == '{' || c == '"' || c == kEnd) return skip_to_close() && skip_to_close();
      bytes_.next();
      if (c == ']') break;
      if (c < '0' || c > '9') continue;
      std::int64_t size = c - '0';
      for (int digit = bytes_.peek(); digit >= '0' && digit <= '9'; digit = bytes_.peek()) {
        size = std::min<std::int64_t>(size * 10 + (digit - '0'), std::int64_t{1} << 54);
        bytes_.next();
      }
      if (size != 0 && product > (std::int64_t{1} << 53) / size) product = -1;
      if (product >= 0) product *= size;
    }
    if (product >= 0) event_.numel = product;
    return skip_to_close();
  }

  // Goes on behind the next `{"ph"`, with which the profiler begins every event.
  bool find_event() {
    for (;;) {
      const std::string_view rest = bytes_.rest();
      if (rest.empty()) return false;
      const std::size_t brace = std::min(rest.find('{'), rest.size());
      bytes_.skip(brace);
      if (brace == rest.size()) continue;
      bytes_.next();
      if (peek_solid() != '"') continue;
      bytes_.next();
      bool same = true;
      for (const char c : std::string_view("ph\"")) {
        same = same && bytes_.peek() == c;
        if (same) bytes_.next();
      }
      if (same) return true;
    }
  }

  TraceBytes& bytes_;
  const std::function<void(const TraceEvent&)>& on_event_;
  const std::function<void(std::int64_t)>& on_bytes_;
  TraceSummary summary_;
  TraceEvent event_;
  std::string key_, scratch_, phase_, begin_, duration_;
  std::int64_t told_ = -1;
  bool in_object_ = false;
  bool found_ = false;
};

}  // namespace

TraceSummary read_trace_events(const std::filesystem::path& path,
                               const std::function<void(const TraceEvent&)>& on_event,
                               const std::function<void(std::int64_t)>& on_bytes) {
  if (std::filesystem::is_directory(path))
    throw InvalidInput("is a folder", path.string(), "give the path of a trace");
  TraceBytes bytes(path);
  TraceParser parser(bytes, on_event, on_bytes);
  const TraceSummary summary = parser.read();
  if (parser.found_any()) return summary;
  if (summary.packed_short)
    throw InvalidInput("is gzipped and ends in the middle, before its first event", bytes.name(), kCopyAgain);
  if (bytes.count() == 0)
    throw InvalidInput("is empty", bytes.name(),
                       "give a trace of the PyTorch profiler; '-' can be read once");
  try {
    require_kind(bytes.whole() ? kind_of(*bytes.whole()) : nullptr, "trace");
  } catch (const InvalidInput& error) {
    throw error.within(bytes.name());
  }
  throw InvalidInput(
      "holds no events", bytes.name(),
      "give a trace that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote");
}

}  // namespace gradweave
