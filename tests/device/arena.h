// Memory of an accelerator on the processor: mapped twice. Device pointers lie in a mapping that nobody may touch, so that a host
// that reads one dies; kernels get the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace gradweave::device {

class Arena {
 public:
  // Reserves addresses for `capacity` bytes; memory is taken as it is allocated. Errors: std::system_error.
  explicit Arena(std::size_t capacity);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Returns a device pointer to fresh memory: all its bits are set, which makes floats NaN. 64 bytes aligned; `bytes` > 0.
  // Errors: std::bad_alloc.
  void* allocate(std::size_t bytes);
  void free(void* device);
  // Returns what a device pointer of an allocation is for kernels; any other pointer, that of an allocation's kernel included, as
  // it is.
  void* for_kernels(const void* device) const;
  // Returns the device pointer of what kernels have at `address`; null if that is no memory of this arena.
  void* of_kernels(const void* address) const;
  bool has(const void* device) const { return contains(device_, device); }

  std::size_t capacity() const { return capacity_; }
  std::size_t allocated() const { return allocated_; }

 private:
  bool contains(const std::byte* mapping, const void* address) const;

  std::size_t capacity_, used_ = 0, allocated_ = 0;
  std::byte *device_ = nullptr, *kernels_ = nullptr;
  std::map<void*, std::size_t> sizes_;              // of what is allocated
  std::map<std::size_t, std::vector<void*>> free_;  // by size
};

}  // namespace gradweave::device
