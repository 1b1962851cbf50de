// What a checkpoint keeps in numbers: the calls that write it read it again.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradweave/error.h"

namespace gradweave::run {

class Archive {
 public:
  // One that writes.
  Archive() = default;
  // One that reads what another has written.
  explicit Archive(std::vector<std::int64_t> numbers) : reads_(true), numbers_(std::move(numbers)) {}

  bool reads() const { return reads_; }
  const std::vector<std::int64_t>& numbers() const { return numbers_; }

  // Writes or reads an integer, a flag or an enumeration. Errors: InvalidInput if there is none to read.
  template <typename T>
  requires std::integral<T> || std::is_enum_v<T>
  void operator()(T& value) {
    if (!reads_) {
      numbers_.push_back(static_cast<std::int64_t>(value));
    } else {
      value = static_cast<T>(next());
    }
  }
  // As many as there are.
  template <typename T>
  void operator()(std::vector<T>& values) {
    for (T& value : values) (*this)(value);
  }
  // And how many there are.
  template <typename T>
  void list(std::vector<T>& values) {
    std::size_t count = values.size();
    (*this)(count);
    if (reads_ && count > numbers_.size()) refuse();
    values.resize(count);
    (*this)(values);
  }
  // Reading: whether all has been read.
  bool ended() const { return reads_ && at_ == numbers_.size(); }
  // Reading: all has been read. Errors: InvalidInput.
  void end() const {
    if (reads_ && !ended()) refuse();
  }

 private:
  std::int64_t next() {
    if (at_ == numbers_.size()) refuse();
    return numbers_[at_++];
  }
  [[noreturn]] static void refuse() {
    throw InvalidInput("it does not fit its plan", "checkpoint",
                       "save and load it by the same version of gradweave");
  }

  bool reads_ = false;
  std::vector<std::int64_t> numbers_;
  std::size_t at_ = 0;
};

}  // namespace gradweave::run
