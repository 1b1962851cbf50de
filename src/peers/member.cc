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

// Returns one post for each rank; nothing for a text of another form.
std::vector<std::string> decode_posts(const std::string& text, int world_size) {
  std::vector<std::string> posts(static_cast<std::size_t>(world_size));
  std::vector<bool> posted(posts.size());
  const std::vector<std::string> fields = split(text);
  if (fields.size() % 2 != 0) return {};
  for (std::size_t i = 0; i < fields.size(); i += 2) {
    if (fields[i + 1] == kEverybody) return std::vector<std::string>(posts.size(), fields[i]);
    for (const std::string& member : split(fields[i + 1])) {
      const auto rank = number_of(member);
      if (!rank || *rank >= world_size) return {};
      posts[static_cast<std::size_t>(*rank)] = fields[i];
      posted[static_cast<std::size_t>(*rank)] = true;
    }
  }
  if (std::ranges::find(posted, false) != posted.end()) return {};
  return posts;
}

// Who judges, as "<term>:<rank>" in the store. A judge that takes over has the next term.
struct Office {
  std::int64_t term = 0;
  int rank = -1;  // nobody's, or that of a text of another form
};

std::string encode(const Office& office) {
  return std::to_string(office.term) + ':' + std::to_string(office.rank);
}

Office decode_office(std::string_view text, int world_size) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {};
  const auto term = number_of(text.substr(0, colon)), rank = number_of(text.substr(colon + 1));
  if (!term || *term == kLargestNumber || !rank || *rank >= world_size) return {};
  return {*term, static_cast<int>(*rank)};
}

}  // namespace

Member::Member(int rank, int world_size, Time now) : rank_(rank), world_size_(world_size), news_at_(now) {
  // The first judge; the others wait for its news before one of them takes over.
  if (rank == 0) news_at_ = now - 2 * kSilent;
}

Incoming Member::round(const Outgoing& outgoing, Store& store, Time now) {
  Incoming incoming;
  if (!outgoing.verdict.empty()) store.exchange(kVerdict, "", outgoing.verdict);
  if (outgoing.sign.waits() && posted_ < outgoing.sign.meetings) {
    store.put(post_key(outgoing.sign.meetings, rank_), join({outgoing.post}));
    posted_ = outgoing.sign.meetings;
  }
  Sign mine = outgoing.sign;
  mine.beat = ++beat_;
  store.put(sign_key(rank_), encode(mine));

  std::vector<std::string> keys{kVerdict, judges_ ? kJudge : kNews};
  if (outgoing.sign.waits()) keys.push_back(posts_key(outgoing.sign.meetings));
  std::vector<std::string> texts = store.get(keys);
  incoming.verdict = texts[0];
  if (outgoing.sign.waits()) incoming.posts = decode_posts(texts[2], world_size_);
  if (!incoming.posts.empty()) {
    last_posts_ = {outgoing.sign.meetings, texts[2]};
    store.erase(post_key(outgoing.sign.meetings, rank_));  // the judge has read it
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
    incoming.all_know = news_.ends_with(kAllKnow);
    incoming.somebody_waits = news_.ends_with(kWaits);
    const bool left = news_.ends_with(kLeft);
    if ((left || now - news_at_ > kSilent) && outgoing.sign.state != State::kEnded) take_over(store, now);
  }
  if (judges_) give_verdict(outgoing, store, now, incoming);
  return incoming;
}

void Member::reconnected(Store& store) {
  posted_ = 0;
  if (last_posts_.meeting > 0) store.put(posts_key(last_posts_.meeting), last_posts_.text);
}

// Unless there is a new judge already, whose news are still to come.
void Member::take_over(Store& store, Time now) {
  const std::string current = store.get({kJudge}).front();
  if (current != judge_ && !news_.starts_with(current + ' ')) {
    judge_ = current;
    news_at_ = now;
    return;
  }
  const Office before = decode_office(current, world_size_);
  const std::string mine = encode(Office{before.term + 1, rank_});
  judge_ = store.exchange(kJudge, current, mine);
  judges_ = judge_ == mine;
  if (!judges_) {
    news_at_ = now;
    return;
  }
  judges_since_ = now;
  seen_.assign(static_cast<std::size_t>(world_size_), {.heard = now, .since = now});
  if (before.rank < 0) return;
  const auto sign = decode_sign(store.get({sign_key(before.rank)}).front());
  seen_[static_cast<std::size_t>(before.rank)] = {
      .came = sign.has_value(), .sign = sign.value_or(Sign{}), .heard = news_at_, .since = now};
}

void Member::read_signs(Store& store, Time now) {
  std::vector<std::string> keys;
  for (int r = 0; r < world_size_; ++r) keys.push_back(sign_key(r));
  const std::vector<std::string> texts = store.get(keys);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    Seen& seen = seen_[r];
    const auto sign = decode_sign(texts[r]);
    if (!sign || *sign == seen.sign) continue;
    if (!seen.came || sign->state != seen.sign.state) seen.since = now;
    seen.came = true;
    seen.heard = now;
    seen.sign = *sign;
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
  last_posts_ = {meeting, encode_posts(posts)};
  store.put(posts_key(meeting), last_posts_.text);
  if (meeting > 1) store.erase(posts_key(meeting - 1));  // all ranks have come here, and so have read it
  gathered_ = meeting;
}

void Member::give_verdict(const Outgoing& outgoing, Store& store, Time now, Incoming& incoming) {
  read_signs(store, now);
  if (incoming.verdict.empty()) {
    gather(store);
    if (const std::string verdict = judge(seen_, now, now - judges_since_); !verdict.empty())
      incoming.verdict = store.exchange(kVerdict, "", verdict);
  }
  incoming.all_know = !incoming.verdict.empty() && all_know(now);
  incoming.somebody_waits =
      incoming.verdict.empty()
          ? std::ranges::any_of(seen_, [](const Seen& seen) { return seen.sign.state == State::kStuck; })
          : !incoming.all_know;
  const bool leaves = outgoing.sign.state == State::kEnded;
  const char how = leaves ? kLeft : incoming.all_know ? kAllKnow : incoming.somebody_waits ? kWaits : ' ';
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
