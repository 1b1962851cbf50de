#include "peers/refusal.h"

#include <algorithm>

#include "peers/sign.h"

namespace gradweave::peers {

std::string refusal_of(const std::vector<std::string>& texts) {
  if (std::ranges::all_of(texts, [&](const std::string& each) { return each == texts[0]; })) return texts[0];
  std::string all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    if (!all.empty()) all += "; ";
    all += name_of({static_cast<int>(rank)}) + " can't put it into force: " + texts[rank];
  }
  return all;
}

}  // namespace gradweave::peers
