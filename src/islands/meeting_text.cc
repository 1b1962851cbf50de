// Messages of the meeting point as texts.
#include "islands/meeting_text.h"

#include <algorithm>
#include <iterator>

#include "peers/sign.h"

namespace gradweave::islands {
namespace {

using peers::join;
using peers::number_of;
using peers::split;
using Fields = std::vector<std::string>;

// The number of a message that has nothing else.
std::optional<std::int64_t> only_number(const Fields& fields) {
  return fields.size() == 2 ? number_of(fields[1]) : std::nullopt;
}

// Returns nothing for a text that join() does not make.
std::optional<Fields> decode_list(const std::string& text) {
  Fields list = split(text);
  if (join(list) != text) return std::nullopt;
  return list;
}

std::string encode(const Island& island) {
  return join({island.name, island.life, std::to_string(island.ranks), join(island.addresses),
               join(island.trains), std::to_string(island.since)});
}

std::optional<Island> decode_island(std::string_view text) {
  const Fields fields = split(text);
  if (fields.size() != 6 || fields[0].empty() || fields[1].empty()) return std::nullopt;
  const auto ranks = number_of(fields[2]), since = number_of(fields[5]);
  auto addresses = decode_list(fields[3]), trains = decode_list(fields[4]);
  if (!ranks || *ranks == 0 || !since || !addresses || !trains) return std::nullopt;
  return Island{.name = fields[0],
                .life = fields[1],
                .ranks = *ranks,
                .addresses = *std::move(addresses),
                .trains = *std::move(trains),
                .since = *since};
}

std::string encode(const Status& status) {
  Fields fields{std::to_string(status.epoch), status.has_state ? "1" : "0"};
  for (const Wait& wait : status.waits)
    fields.push_back(join({wait.island, std::to_string(wait.time.count()), wait.connected ? "1" : "0"}));
  return join(fields);
}

std::optional<bool> decode_bool(std::string_view text) {
  if (text != "0" && text != "1") return std::nullopt;
  return text == "1";
}

std::optional<Status> decode_status(std::string_view text) {
  const Fields fields = split(text);
  if (fields.size() < 2) return std::nullopt;
  const auto epoch = number_of(fields[0]);
  const auto has_state = decode_bool(fields[1]);
  if (!epoch || !has_state) return std::nullopt;
  Status status{.epoch = *epoch, .has_state = *has_state, .waits = {}};
  for (std::size_t i = 2; i < fields.size(); ++i) {
    const Fields wait = split(fields[i]);
    if (wait.size() != 3) return std::nullopt;
    const auto time = number_of(wait[1]);
    const auto connected = decode_bool(wait[2]);
    if (!time || !connected) return std::nullopt;
    status.waits.push_back({.island = wait[0], .time = Time(*time), .connected = *connected});
  }
  return status;
}

}  // namespace

std::string encode(const Epoch& epoch) {
  Fields fields{epoch.line, std::to_string(epoch.number), epoch.by};
  std::ranges::transform(epoch.islands, std::back_inserter(fields),
                         [](const Island& island) { return encode(island); });
  return join(fields);
}

// Its islands are in the order of their names, and no two have the same.
std::optional<Epoch> decode_epoch(std::string_view text) {
  const Fields fields = split(text);
  if (fields.size() < 3) return std::nullopt;
  const auto number = number_of(fields[1]);
  if (!number) return std::nullopt;
  Epoch epoch{.line = fields[0], .number = *number, .by = fields[2]};
  for (std::size_t i = 3; i < fields.size(); ++i) {
    auto island = decode_island(fields[i]);
    if (!island || (!epoch.islands.empty() && epoch.islands.back().name >= island->name)) return std::nullopt;
    epoch.islands.push_back(*std::move(island));
  }
  return epoch;
}

std::string encode(const ToMeeting& message) {
  Fields fields{std::string(1, static_cast<char>(message.what))};
  switch (message.what) {
    case ToMeeting::What::kJoin:
      fields.push_back(encode(message.report.island));
      fields.push_back(message.report.epoch ? encode(*message.report.epoch) : "");
      fields.emplace_back(message.report.has_trained ? "1" : "0");
      fields.push_back(encode(message.report.status));
      fields.push_back(message.report.saw_dead ? std::to_string(message.report.saw_dead->count()) : "");
      break;
    case ToMeeting::What::kRenew:
      fields.push_back(std::to_string(message.beat));
      fields.push_back(encode(message.status));
      break;
    case ToMeeting::What::kAgree:
      fields.push_back(std::to_string(message.number));
      break;
    case ToMeeting::What::kLeave:
      break;
  }
  return join(fields);
}

std::optional<ToMeeting> decode_to_meeting(std::string_view text) {
  const Fields fields = split(text);
  if (fields.empty() || fields[0].size() != 1) return std::nullopt;
  ToMeeting message{.what = static_cast<ToMeeting::What>(fields[0].front())};
  switch (message.what) {
    case ToMeeting::What::kJoin: {
      if (fields.size() != 6) return std::nullopt;
      auto island = decode_island(fields[1]);
      auto epoch = decode_epoch(fields[2]);
      const auto has_trained = decode_bool(fields[3]);
      auto status = decode_status(fields[4]);
      const auto age = number_of(fields[5]);
      if (!island || (!epoch && !fields[2].empty()) || !has_trained || !status ||
          (!age && !fields[5].empty()))
        return std::nullopt;
      message.report = {.island = *std::move(island),
                        .epoch = std::move(epoch),
                        .has_trained = *has_trained,
                        .status = *std::move(status)};
      if (age) message.report.saw_dead = Time(*age);
      return message;
    }
    case ToMeeting::What::kRenew: {
      if (fields.size() != 3) return std::nullopt;
      const auto beat = number_of(fields[1]);
      auto status = decode_status(fields[2]);
      if (!beat || !status) return std::nullopt;
      message.beat = *beat;
      message.status = *std::move(status);
      return message;
    }
    case ToMeeting::What::kAgree: {
      const auto number = only_number(fields);
      if (!number) return std::nullopt;
      message.number = *number;
      return message;
    }
    case ToMeeting::What::kLeave:
      if (fields.size() != 1) return std::nullopt;
      return message;
  }
  return std::nullopt;
}

std::string encode(const FromMeeting& message) {
  Fields fields{std::string(1, static_cast<char>(message.what))};
  switch (message.what) {
    case FromMeeting::What::kRefused:
    case FromMeeting::What::kLeftOut:
      fields.push_back(message.why);
      break;
    case FromMeeting::What::kProposed:
      fields.push_back(encode(message.epoch));
      fields.push_back(std::to_string(message.base));
      fields.push_back(join(message.left));
      break;
    case FromMeeting::What::kInForce:
      fields.push_back(std::to_string(message.number));
      break;
    case FromMeeting::What::kRenewed:
      fields.push_back(std::to_string(message.beat));
      fields.push_back(std::to_string(message.lease.count()));
      fields.emplace_back(message.awaited ? "1" : "0");
      break;
    case FromMeeting::What::kUnknown:
      break;
  }
  return join(fields);
}

std::optional<FromMeeting> decode_from_meeting(std::string_view text) {
  const Fields fields = split(text);
  if (fields.empty() || fields[0].size() != 1) return std::nullopt;
  FromMeeting message{.what = static_cast<FromMeeting::What>(fields[0].front())};
  switch (message.what) {
    case FromMeeting::What::kRefused:
    case FromMeeting::What::kLeftOut:
      if (fields.size() != 2) return std::nullopt;
      message.why = fields[1];
      return message;
    case FromMeeting::What::kProposed: {
      if (fields.size() != 4) return std::nullopt;
      auto epoch = decode_epoch(fields[1]);
      const auto base = number_of(fields[2]);
      auto left = decode_list(fields[3]);
      if (!epoch || !base || !left) return std::nullopt;
      message.left = *std::move(left);
      message.epoch = *std::move(epoch);
      message.base = *base;
      return message;
    }
    case FromMeeting::What::kInForce: {
      const auto number = only_number(fields);
      if (!number) return std::nullopt;
      message.number = *number;
      return message;
    }
    case FromMeeting::What::kRenewed: {
      if (fields.size() != 4) return std::nullopt;
      const auto beat = number_of(fields[1]), lease = number_of(fields[2]);
      const auto awaited = decode_bool(fields[3]);
      if (!beat || !lease || *lease == 0 || !awaited) return std::nullopt;
      message.beat = *beat;
      message.lease = Time(*lease);
      message.awaited = *awaited;
      return message;
    }
    case FromMeeting::What::kUnknown:
      if (fields.size() != 1) return std::nullopt;
      return message;
  }
  return std::nullopt;
}

}  // namespace gradweave::islands
