#include "peers/member.h"

#include <algorithm>
#include <map>

namespace gradweave::peers {
namespace {

const std::string kJudge = "judge", kNews = "news", kVerdict = "verdict";
const std::string kEverybody = "*";
constexpr char kAllKnow = 'k', kWaits = 'w', kLeft = 'l';  // in the judge's news

std::string sign_key(int rank) { return "sign/" + std::to_string(rank); }
std::string post_key(std::int64_t meeting, int rank) {
  return "post/" + std::to_string(meeting) + '/' + std::to_string(rank);
}
std::string posts_key(std::int64_t meeting) { return "posts/" + std::to_string(meeting); }

// All posts of a meeting: each different text once, with its ranks.
std::string encode_posts(const std::vector<std::string>& posts) {
  std::map<std::string, std::vector<std::string>> ranks;
  for (std::size_t r = 0; r < posts.size(); ++r) ranks[posts[r]].push_back(std::to_string(r));
  std::vector<std::string> fields;
  for (const auto& [text, members] : ranks) {
    fields.push_back(text);
    fields.push_back(members.size() == posts.size() ? kEverybody : join(members));
  }
  return join(fields);
}

std::vector<std::string> decode_posts(const std::string& text, int world_size) {
  std::vector<std::string> posts(static_cast<std::size_t>(world_size));
  const std::vector<std::string> fields = split(text);
  for (std::size_t i = 0; i + 1 < fields.size(); i += 2) {
    if (fields[i + 1] == kEverybody) {
      std::ranges::fill(posts, fields[i]);
      break;
    }
    for (const std::string& rank : split(fields[i + 1])) posts[std::stoul(rank)] = fields[i];
  }
  return posts;
}

}  // namespace

Member::Member(int rank, int world_size, Time now) : rank_(rank), world_size_(world_size), news_at_(now) {
  // The first judge; the others wait for its news before one of them takes over.
  if (rank == 0) news_at_ = now - 2 * kSilent;
}

Heard Member::round(const Said& said, Store& store, Time now) {
  Heard heard;
  if (!said.verdict.empty()) store.exchange(kVerdict, "", said.verdict);
  if (said.sign.waits() && posted_ < said.sign.meetings) {
    store.put(post_key(said.sign.meetings, rank_), join({said.post}));
    posted_ = said.sign.meetings;
  }
  Sign mine = said.sign;
  mine.beat = ++beat_;
  store.put(sign_key(rank_), encode(mine));

  std::vector<std::string> keys{kVerdict, judges_ ? kJudge : kNews};
  if (said.sign.waits()) keys.push_back(posts_key(said.sign.meetings));
  std::vector<std::string> texts = store.get(keys);
  heard.verdict = texts[0];
  if (said.sign.waits() && !texts[2].empty()) {
    heard.posts = decode_posts(texts[2], world_size_);
    store.erase(post_key(said.sign.meetings, rank_));  // the judge has read it
  }
  if (judges_) {
    judges_ = texts[1] == judge_;
    if (!judges_) {  // it was silent for too long, and another has taken over
      judge_ = texts[1];
      news_at_ = now;
    }
  } else {
    if (texts[1] != news_) news_at_ = now;
    news_ = texts[1];
    heard.all_know = news_.ends_with(kAllKnow);
    heard.somebody_waits = news_.ends_with(kWaits);
    const bool left = news_.ends_with(kLeft);
    if ((left || now - news_at_ > kSilent) && said.sign.state != State::kEnded) take_over(store, now);
  }
  if (judges_) give_verdict(said, store, now, heard);
  return heard;
}

// Unless there is a new judge already, whose news are still to come.
void Member::take_over(Store& store, Time now) {
  const std::string current = store.get({kJudge}).front();
  if (current != judge_ && !news_.starts_with(current + ' ')) {
    judge_ = current;
    news_at_ = now;
    return;
  }
  const std::size_t colon = current.find(':');
  const std::int64_t term = current.empty() ? 0 : std::stoll(current);
  const std::string mine = std::to_string(term + 1) + ':' + std::to_string(rank_);
  judge_ = store.exchange(kJudge, current, mine);
  judges_ = judge_ == mine;
  if (!judges_) {
    news_at_ = now;
    return;
  }
  seen_.assign(static_cast<std::size_t>(world_size_), {.heard = now, .since = now});
  if (current.empty()) return;
  const int before = std::stoi(current.substr(colon + 1));
  const std::string sign = store.get({sign_key(before)}).front();
  seen_[static_cast<std::size_t>(before)] = {
      .came = !sign.empty(), .sign = decode_sign(sign), .heard = news_at_, .since = now};
}

void Member::read_signs(Store& store, Time now) {
  std::vector<std::string> keys;
  for (int r = 0; r < world_size_; ++r) keys.push_back(sign_key(r));
  const std::vector<std::string> texts = store.get(keys);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if (texts[r].empty()) continue;
    Seen& seen = seen_[r];
    const Sign sign = decode_sign(texts[r]);
    if (sign == seen.sign) continue;
    if (!seen.came || sign.state != seen.sign.state) seen.since = now;
    seen.came = true;
    seen.heard = now;
    seen.sign = sign;
  }
}

// Publishes what all ranks have posted to the meeting in which all of them wait.
void Member::gather(Store& store) {
  const std::int64_t meeting = seen_.front().sign.meetings;
  const bool complete = std::ranges::all_of(seen_, [&](const Seen& seen) {
    return seen.came && seen.sign.state == State::kRunning && seen.sign.waits() &&
           seen.sign.meetings == meeting && seen.sign.what == seen_.front().sign.what &&
           seen.sign.iteration == seen_.front().sign.iteration;
  });
  if (!complete || gathered_ >= meeting) return;
  std::vector<std::string> keys;
  for (int r = 0; r < world_size_; ++r) keys.push_back(post_key(meeting, r));
  std::vector<std::string> posts = store.get(keys);
  for (std::string& post : posts) {
    const std::vector<std::string> fields = split(post);
    if (fields.empty()) return;  // taken back: they were published before
    post = fields.front();
  }
  store.put(posts_key(meeting), encode_posts(posts));
  if (meeting > 1) store.erase(posts_key(meeting - 1));  // all ranks have come here, and so have read it
  gathered_ = meeting;
}

void Member::give_verdict(const Said& said, Store& store, Time now, Heard& heard) {
  read_signs(store, now);
  if (heard.verdict.empty()) {
    gather(store);
    if (const std::string verdict = judge(seen_, now); !verdict.empty())
      heard.verdict = store.exchange(kVerdict, "", verdict);
  }
  heard.all_know = !heard.verdict.empty() && all_know(now);
  heard.somebody_waits =
      heard.verdict.empty()
          ? std::ranges::any_of(seen_, [](const Seen& seen) { return seen.sign.state == State::kStuck; })
          : !heard.all_know;
  const bool leaves = said.sign.state == State::kEnded;
  const char how = leaves ? kLeft : heard.all_know ? kAllKnow : heard.somebody_waits ? kWaits : ' ';
  store.put(kNews, judge_ + ' ' + std::to_string(beat_) + how);
}

bool Member::all_know(Time now) const {
  for (int r = 0; r < world_size_; ++r) {
    const Seen& seen = seen_[static_cast<std::size_t>(r)];
    const bool knows = seen.sign.state == State::kLeaving || seen.sign.state == State::kEnded;
    if (r != rank_ && seen.came && !knows && now - seen.heard <= kSilent) return false;
  }
  return true;
}

}  // namespace gradweave::peers
