// What every reader owes on any bytes: a value that can be used, or InvalidInput with a bounded message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gradweave/error.h"
#include "gradweave/json.h"

namespace gradweave {

// `check` reads the bytes and aborts if it can't use what it read.
template <typename Check>
int check_input(const std::uint8_t* data, std::size_t size, Check check) {
  try {
    check(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const InvalidInput& error) {
    if (std::string_view(error.what()).size() >= 20'000) std::abort();
  }
  return 0;
}

// What was read is written as something that reads back the same.
template <typename Value, typename Parse>
void check_round_trip(const Value& value, Parse parse) {
  try {
    if (parse(to_json(value)) == value) return;
  } catch (const InvalidInput&) {
  }
  std::abort();
}

template <typename Parse>
int check_reader(const std::uint8_t* data, std::size_t size, Parse parse) {
  return check_input(data, size, [&](std::string_view text) { check_round_trip(parse(text), parse); });
}

}  // namespace gradweave
