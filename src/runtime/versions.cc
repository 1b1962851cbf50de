#include "runtime/versions.h"

namespace gradweave::runtime {

void Versions::install(std::size_t tensors) {
  handed_.assign(tensors, {});
  noted_.assign(tensors, -1);
}

void Versions::hand_over(std::int32_t tensor) {
  const at::Tensor gradient = parameters_.gradient(tensor);
  handed_[static_cast<std::size_t>(tensor)] = now(gradient);
  const c10::Storage& memory = gradient.storage();
  if (memory.use_count() > 1) shared_[memory.unsafeGetStorageImpl()] = gradient._version();
}

run::Kept Versions::kept(std::int32_t tensor) const {
  const at::Tensor gradient = parameters_.gradient(tensor);
  if (!gradient.defined()) return run::Kept::kGone;
  const Handed& handed = handed_[static_cast<std::size_t>(tensor)];
  const Handed is = now(gradient);
  if (is == handed) return run::Kept::kSame;
  const auto shared = shared_.find(gradient.storage().unsafeGetStorageImpl());
  const bool same = is.data == handed.data && shared != shared_.end() && is.version == shared->second;
  return same ? run::Kept::kSame : run::Kept::kChanged;
}

void Versions::note_parameter(std::int32_t tensor) {
  noted_[static_cast<std::size_t>(tensor)] = parameters_[tensor]._version();
}

bool Versions::parameter_changed(std::int32_t tensor) const {
  const std::int64_t noted = noted_[static_cast<std::size_t>(tensor)];
  return noted >= 0 && noted != parameters_[tensor]._version();
}

void Versions::archive(run::Archive& numbers) {
  for (std::size_t t = 0; t < noted_.size(); ++t) {
    bool noted = noted_[t] >= 0;
    numbers(noted);
    if (!numbers.reads()) continue;
    noted_[t] = -1;
    if (noted) note_parameter(static_cast<std::int32_t>(t));
  }
}

}  // namespace gradweave::runtime
