#include "gradweave/error.h"

#include "base/quoted.h"

namespace gradweave {
namespace {

std::string sentence(std::string_view what, std::string_view where, std::string_view remedy) {
  std::string text;
  if (!where.empty()) text.append(where).append(": ");
  text.append(what);
  if (!remedy.empty()) text.append("; ").append(remedy);
  return printable(text);
}

}  // namespace

InvalidInput::InvalidInput(std::string_view what, std::string_view where, std::string_view remedy)
    : Error(sentence(what, where, remedy)), fault_(what), where_(where), remedy_(remedy) {}

InvalidInput InvalidInput::within(std::string_view prefix) const {
  std::string where(prefix);
  if (!where_.empty()) where.append(": ").append(where_);
  return InvalidInput(fault_, where, remedy_);
}

}  // namespace gradweave
