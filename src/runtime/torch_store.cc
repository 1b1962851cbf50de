#include "runtime/torch_store.h"

#include <cstdlib>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace gradweave::runtime {

void TorchStore::put(const std::string& key, const std::string& text) { store_->set(key, text); }

std::vector<std::string> TorchStore::get(const std::vector<std::string>& keys) {
  // A get waits for a key that is not there.
  std::vector<std::string> there;
  const bool all = store_->check(keys);
  for (const std::string& key : keys) {
    if (all || store_->check({key})) there.push_back(key);
  }
  std::vector<std::string> texts(keys.size());
  if (there.empty()) return texts;
  const auto values = store_->multiGet(there);
  for (std::size_t k = 0, found = 0; k < keys.size() && found < there.size(); ++k) {
    if (keys[k] != there[found]) continue;
    texts[k].assign(values[found].begin(), values[found].end());
    ++found;
  }
  return texts;
}

std::string TorchStore::exchange(const std::string& key, const std::string& expected,
                                 const std::string& text) {
  return store_->compareSet(key, expected, text);
}

void TorchStore::erase(const std::string& key) { store_->deleteKey(key); }

std::string describe(c10d::Store& store) {
  c10d::Store* inner = &store;
  while (auto* prefix = dynamic_cast<c10d::PrefixStore*>(inner)) inner = prefix->getUnderlyingStore().get();
  const auto* tcp = dynamic_cast<c10d::TCPStore*>(inner);
  if (tcp == nullptr) return "the store";
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool of_agent = agent != nullptr && std::string_view(agent) == "True";
  return "the store at " + tcp->getHost() + ":" + std::to_string(tcp->getPort()) +
         (of_agent ? ", which torchrun hosts" : ", which rank 0 hosts by default");
}

}  // namespace gradweave::runtime
