// A c10d store as a store of texts, over a connection of its own.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "peers/member.h"

namespace gradweave::runtime {

// The caller's connection may be held by a blocking wait. Errors of every call: std::exception; connect() again then.
class TorchStore : public peers::Store {
 public:
  // `source` is only cloned.
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> source) : source_(std::move(source)) {}

  // Owed before the first call. A store whose host is lost may hold it for the store's own timeout, minutes by default.
  void connect() { store_ = source_->clone(); }

  void put(const std::string& key, const std::string& text) override;
  std::vector<std::string> get(const std::vector<std::string>& keys) override;
  std::string exchange(const std::string& key, const std::string& expected, const std::string& text) override;
  void erase(const std::string& key) override;

 private:
  c10::intrusive_ptr<c10d::Store> source_, store_;
};

// Returns "the store at 10.0.0.1:29500, which rank 0 hosts by default".
std::string describe(c10d::Store& store);

}  // namespace gradweave::runtime
