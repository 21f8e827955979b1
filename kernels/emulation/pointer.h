#pragma once

// Pointers that an emulated kernel sees: they know the memory they point into, and every access is
// checked. The kernel that reads or writes out of bounds, after a free, or at an address that its
// type may not have, stops with a message (context.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace sparsebalance::kernels::emulation {

enum class Space { kGlobal, kShared };

// One allocation of device memory, or one shared array.
struct Region {
  std::byte* data = nullptr;  // aligned to kRegionAlignment
  uint64_t bytes = 0;
  // Of this use of the region: another allocation may get it after a free.
  uint32_t generation = 0;
  Space space = Space::kGlobal;
  std::string name;
};

inline constexpr uint64_t kRegionAlignment = 256;

// What null pointers point into.
extern const Region kNoRegion;

struct ThreadContext;
// The thread that runs now; null outside of kernels, where nothing of this is accessible.
extern constinit thread_local ThreadContext* current_thread;

// Stops the kernel, or outside of one the program; says which of the checks failed.
[[noreturn]] void FailAccess(const Region& region, uint32_t generation, uint64_t offset,
                             uint64_t bytes, uint64_t alignment);

// Copyable, owns nothing. As with T*, arithmetic may leave the memory, access may not.
template <typename T, Space kSpace>
class Pointer {
 public:
  using Element = T;

  Pointer() = default;
  Pointer(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  Pointer(const Region* region, uint32_t generation, uint64_t offset)
      : region_(region), offset_(offset), generation_(generation) {}
  // A pointer to mutable elements is also one to constant elements.
  template <typename U>
  requires std::is_same_v<const U, T> Pointer(
      const Pointer<U, kSpace>& other)  // NOLINT(google-explicit-constructor)
      : region_(other.region()), offset_(other.offset()), generation_(other.generation()) {}

  T& operator*() const { return *reinterpret_cast<T*>(Check(0, sizeof(T), alignof(T))); }
  T* operator->() const { return &**this; }
  T& operator[](int64_t i) const {
    return *reinterpret_cast<T*>(Check(Scale(i), sizeof(T), alignof(T)));
  }

  Pointer operator+(int64_t n) const { return Pointer(region_, generation_, offset_ + Scale(n)); }
  Pointer operator-(int64_t n) const { return Pointer(region_, generation_, offset_ - Scale(n)); }
  int64_t operator-(const Pointer& other) const {
    return static_cast<int64_t>(offset_ - other.offset_) / static_cast<int64_t>(sizeof(T));
  }
  Pointer& operator+=(int64_t n) { return *this = *this + n; }
  Pointer& operator-=(int64_t n) { return *this = *this - n; }
  Pointer& operator++() { return *this += 1; }
  Pointer& operator--() { return *this -= 1; }

  bool operator==(const Pointer& other) const {
    return region_ == other.region_ && offset_ == other.offset_;
  }
  bool operator==(std::nullptr_t) const { return region_ == &kNoRegion; }
  bool operator<(const Pointer& other) const { return offset_ < other.offset_; }
  explicit operator bool() const { return region_ != &kNoRegion; }

  // The address `offset` bytes further, if `bytes` from there are in bounds and it is a multiple
  // of `alignment`.
  std::byte* Check(uint64_t offset, uint64_t bytes, uint64_t alignment) const {
    const uint64_t begin = offset_ + offset;
    // The third term is there for sums that wrap around.
    const bool good = generation_ == region_->generation && begin + bytes <= region_->bytes &&
                      begin <= region_->bytes && (begin & (alignment - 1)) == 0 &&
                      current_thread != nullptr;
    if (!good) [[unlikely]] {
      FailAccess(*region_, generation_, begin, bytes, alignment);
    }
    return region_->data + begin;
  }

  const Region* region() const { return region_; }
  uint64_t offset() const { return offset_; }
  uint32_t generation() const { return generation_; }

 private:
  // Unsigned, so that a wild index wraps around and is then out of bounds.
  static uint64_t Scale(int64_t n) { return static_cast<uint64_t>(n) * sizeof(T); }

  const Region* region_ = &kNoRegion;
  uint64_t offset_ = 0;  // bytes
  uint32_t generation_ = 0;
};

}  // namespace sparsebalance::kernels::emulation
