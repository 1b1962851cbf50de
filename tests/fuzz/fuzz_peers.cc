// Any texts in the store: a rank neither crashes nor hangs on them, whether it judges or not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "peers/member.h"

namespace {

using namespace gradweave::peers;

constexpr int kRanks = 3;
constexpr const char* kKeys[]{"judge",  "news",     "verdict",  "sign/0",   "sign/1",
                              "sign/2", "post/1/0", "post/1/1", "post/1/2", "posts/1"};

class MapStore : public Store {
 public:
  void put(const std::string& key, const std::string& text) override { texts[key] = text; }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      const auto text = texts.find(key);
      found.push_back(text == texts.end() ? "" : text->second);
    }
    return found;
  }
  std::string exchange(const std::string& key, const std::string& expected,
                       const std::string& text) override {
    std::string& held = texts[key];
    if (held == expected) held = text;
    return held;
  }
  void erase(const std::string& key) override { texts.erase(key); }

  std::map<std::string, std::string> texts;
};

void check_reading(std::string_view text) {
  if (const auto sign = decode_sign(text); sign && decode_sign(encode(*sign)) != sign) std::abort();
  const std::vector<std::string> fields = split(text);
  if (!fields.empty() && split(join(fields)) != fields) std::abort();
}

}  // namespace

// The first byte says which of the store's texts are the input's lines; then three ranks go on as if nothing was.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace std::chrono_literals;
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  check_reading(rest);
  MapStore store;
  Time now = 100s;
  std::vector<Member> members;
  std::vector<Outgoing> outgoing(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    members.emplace_back(r, kRanks, now);
    outgoing[static_cast<std::size_t>(r)] = {
        .sign = {.activity = Activity::kMeeting, .meetings = 1, .what = "finish()"}, .post = "a"};
  }
  for (int round = 0; round < 8; ++round) {
    for (std::size_t key = data[0]; round % 2 == 0 && !rest.empty(); ++key) {
      const std::size_t end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      check_reading(line);
      store.texts[kKeys[key % std::size(kKeys)]] = line;
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (line.empty()) break;  // the rest comes later
    }
    for (std::size_t r = 0; r < kRanks; ++r) {
      const Incoming incoming = members[r].round(outgoing[r], store, now);
      if (!incoming.posts.empty() && incoming.posts.size() != kRanks) std::abort();
      if (!incoming.verdict.empty()) outgoing[r].sign.state = State::kLeaving;
    }
    now += 700ms;
  }
  return 0;
}
