// Lists of names in messages, and the one that was meant.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gradweave {

// Returns "a, b, c".
std::string listed(std::span<const std::string_view> names);

// Returns the one of `names` that `word`, which is none of them, was meant to be: a slip or two away, in other letters'
// case, or cut short; nothing if none is near. O(length of word times length of all names).
std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> names);

// Returns a remedy for `word`, which is none of `names`: "did you mean 'b'? Use one of a, b" if one is near,
// else "use one of a, b". `lead` is "use one of". O(length of word times length of all names).
std::string choice_of(std::string_view word, std::span<const std::string_view> names, std::string lead);

}  // namespace gradweave
