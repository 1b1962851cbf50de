#include "device/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace gradweave::device {
namespace {

constexpr std::size_t kAlignment = 64;

std::byte* map(int file, std::size_t bytes, int protection) {
  void* const mapping = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (mapping == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return static_cast<std::byte*>(mapping);
}

}  // namespace

Arena::Arena(std::size_t capacity) : capacity_(capacity) {
  const int file = memfd_create("accelerator", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(capacity)) != 0)
    throw std::system_error(errno, std::generic_category(), "memfd");
  device_ = map(file, capacity, PROT_NONE);
  kernels_ = map(file, capacity, PROT_READ | PROT_WRITE);
  close(file);
}

Arena::~Arena() {
  munmap(device_, capacity_);
  munmap(kernels_, capacity_);
}

void* Arena::allocate(std::size_t bytes) {
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<void*>& free = free_[size];
  void* device = nullptr;
  if (!free.empty()) {
    device = free.back();
    free.pop_back();
  } else {
    if (size > capacity_ - used_) throw std::bad_alloc();
    device = device_ + used_;
    used_ += size;
  }
  sizes_[device] = size;
  allocated_ += size;
  std::memset(for_kernels(device), 0xff, size);
  return device;
}

void Arena::free(void* device) {
  const auto found = sizes_.find(device);
  allocated_ -= found->second;
  free_[found->second].push_back(device);
  sizes_.erase(found);
}

bool Arena::contains(const std::byte* mapping, const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= mapping && at < mapping + capacity_;
}

void* Arena::for_kernels(const void* device) const {
  if (!has(device)) return const_cast<void*>(device);
  return kernels_ + (static_cast<const std::byte*>(device) - device_);
}

void* Arena::of_kernels(const void* address) const {
  if (!contains(kernels_, address)) return nullptr;
  return device_ + (static_cast<const std::byte*>(address) - kernels_);
}

}  // namespace gradweave::device
