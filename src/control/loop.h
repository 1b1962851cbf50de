// What a training loop does, and which plans support it.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "gradweave/effects.h"

namespace gradweave::control {

// Something that a loop does.
struct Trait {
  std::string_view name;
  std::string_view does;
  bool (*supported)(const Demands&);  // by a plan that asks for this
  std::string_view remedy;
};

// Returns all, in the order in which they are told.
std::span<const Trait> traits();

// The traits of one job's loop, as far as they have been seen.
class Loop {
 public:
  // `detail`: what it is here; may be empty. The caller owes the name of a trait. Errors: InvalidInput if the loop is bound
  // to demands that don't support it.
  void saw(std::string_view trait, const std::string& detail = "");
  // From now on it is an error, at once, if the loop does what a plan of `scheme` with these demands does not support.
  void bind(const std::string& scheme, const Demands& demands);

  bool seen(std::string_view trait) const { return seen_.contains(trait); }
  // By trait: what it is here.
  using Traits = std::map<std::string, std::string, std::less<>>;
  const Traits& seen() const { return seen_; }
  // Returns why a plan with these demands can't serve the loop, with the remedy; "" if it can.
  std::string refusal(const Demands& demands) const;

 private:
  void check_bound() const;

  Traits seen_;
  std::optional<std::pair<std::string, Demands>> bound_;
};

}  // namespace gradweave::control
