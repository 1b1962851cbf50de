// What a council says, as texts.
#include <algorithm>
#include <iterator>

#include "islands/council.h"
#include "peers/sign.h"

namespace gradweave::islands {
namespace {

using peers::join;
using peers::number_of;
using peers::split;
using Fields = std::vector<std::string>;

std::string flag(bool value) { return value ? "1" : "0"; }

std::optional<bool> flag_of(const std::string& text) {
  if (text != "0" && text != "1") return std::nullopt;
  return text == "1";
}

std::string encode(const Command& command) {
  return join({std::string(1, static_cast<char>(command.what)), std::to_string(command.number),
               join(command.members), command.other, std::to_string(command.landed), flag(command.last)});
}

std::optional<Command> decode_command(std::string_view text) {
  const Fields fields = split(text);
  if (fields.size() != 6 || fields[0].size() != 1) return std::nullopt;
  const auto number = number_of(fields[1]), landed = number_of(fields[4]);
  Fields members = split(fields[2]);
  const auto last = flag_of(fields[5]);
  if (!number || !landed || !last || join(members) != fields[2]) return std::nullopt;
  const auto what = static_cast<Command::What>(fields[0].front());
  switch (what) {
    case Command::What::kBegin:
    case Command::What::kLand:
    case Command::What::kDrop:
    case Command::What::kGive:
    case Command::What::kGiven:
    case Command::What::kTake:
    case Command::What::kTrain:
      return Command{.what = what,
                     .number = *number,
                     .members = std::move(members),
                     .other = fields[3],
                     .landed = *landed,
                     .last = *last};
  }
  return std::nullopt;
}

// "" for nothing.
std::string encode(const std::optional<Standing::Average>& average) {
  if (!average) return "";
  return join({std::to_string(average->number), join(average->members), flag(average->last)});
}

// Returns whether the text is of that form.
bool decode(const std::string& text, std::optional<Standing::Average>& average) {
  if (text.empty()) return true;
  const Fields fields = split(text);
  if (fields.size() != 3) return false;
  const auto number = number_of(fields[0]);
  Fields members = split(fields[1]);
  const auto last = flag_of(fields[2]);
  if (!number || !last || members.empty()) return false;
  average = {.number = *number, .members = std::move(members), .last = *last};
  return true;
}

std::string encode(const std::map<std::string, std::int64_t>& gives) {
  Fields fields;
  for (const auto& [taker, number] : gives) {
    fields.push_back(taker);
    fields.push_back(std::to_string(number));
  }
  return join(fields);
}

bool decode(const std::string& text, std::map<std::string, std::int64_t>& gives) {
  const Fields fields = split(text);
  if (fields.size() % 2 != 0 || join(fields) != text) return false;
  for (std::size_t i = 0; i < fields.size(); i += 2) {
    const auto number = number_of(fields[i + 1]);
    if (!number) return false;
    gives[fields[i]] = *number;
  }
  return true;
}

}  // namespace

std::string encode(const std::vector<Command>& commands) {
  Fields fields;
  std::ranges::transform(commands, std::back_inserter(fields),
                         [](const Command& command) { return encode(command); });
  return join(fields);
}

std::optional<std::vector<Command>> decode_commands(std::string_view text) {
  const Fields fields = split(text);
  if (join(fields) != text) return std::nullopt;
  std::vector<Command> commands;
  for (const std::string& field : fields) {
    auto command = decode_command(field);
    if (!command) return std::nullopt;
    commands.push_back(*std::move(command));
  }
  return commands;
}

std::string encode(const Standing& standing) {
  return join({flag(standing.has_state), std::to_string(standing.highest), std::to_string(standing.landed),
               std::to_string(standing.before), encode(standing.under_way), flag(standing.complete),
               flag(standing.failed), standing.wants ? flag(*standing.wants) : "",
               std::to_string(standing.takes), standing.from,
               standing.caught_up ? std::to_string(*standing.caught_up) : "", flag(standing.failed_to_take),
               encode(standing.gives), std::to_string(standing.missed)});
}

std::optional<Standing> decode_standing(std::string_view text) {
  const Fields fields = split(text);
  if (fields.size() != 14) return std::nullopt;
  const auto has_state = flag_of(fields[0]), complete = flag_of(fields[5]), failed = flag_of(fields[6]),
             failed_to_take = flag_of(fields[11]);
  const auto highest = number_of(fields[1]), landed = number_of(fields[2]), before = number_of(fields[3]),
             takes = number_of(fields[8]), missed = number_of(fields[13]);
  if (!has_state || !complete || !failed || !failed_to_take || !highest || !landed || !before || !takes ||
      !missed)
    return std::nullopt;
  Standing standing{.has_state = *has_state,
                    .highest = *highest,
                    .landed = *landed,
                    .before = *before,
                    .complete = *complete,
                    .failed = *failed,
                    .wants = flag_of(fields[7]),
                    .takes = *takes,
                    .from = fields[9],
                    .caught_up = number_of(fields[10]),
                    .failed_to_take = *failed_to_take,
                    .missed = *missed};
  const bool whole = (standing.wants || fields[7].empty()) && (standing.caught_up || fields[10].empty()) &&
                     decode(fields[4], standing.under_way) && decode(fields[12], standing.gives);
  if (!whole) return std::nullopt;
  return standing;
}

}  // namespace gradweave::islands
