#pragma once

// Pointers, shared memory, loads and stores of vectors. On a GPU a DevicePtr<T> is a T*; in the
// emulation it checks every access. Sizes and indices are counted in elements of T.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/types.h"
#if !defined(__CUDACC__)
#include "kernels/emulation/context.h"
#endif

namespace sparsebalance::kernels::cuda {

#if defined(__CUDACC__)

template <typename T>
using DevicePtr = T*;
template <typename T>
using SharedPtr = T*;

// The same address as another type; the host may call it too.
template <typename U, typename T>
SB_HOST_DEVICE inline U* PtrCast(T* pointer) {
  return reinterpret_cast<U*>(pointer);
}

// One access of sizeof(V) bytes; the address must be a multiple of that.
template <typename V, typename T>
SB_DEVICE inline V LoadVec(const T* from) {
  return *reinterpret_cast<const V*>(from);
}
template <typename V, typename T>
SB_DEVICE inline void StoreVec(T* to, V value) {
  *reinterpret_cast<V*>(to) = value;
}

// The memory that the launch asked for, aligned to 128 bytes.
template <typename T>
SB_DEVICE inline T* DynamicShared() {
  extern __shared__ __align__(128) unsigned char sb_dynamic_shared[];
  return reinterpret_cast<T*>(sb_dynamic_shared);
}

// Declares `name`, an array of the block that is aligned to 16 bytes.
#define SB_SHARED_ARRAY(T, name, count) __shared__ __align__(16) T name[count]

#else

template <typename T>
using DevicePtr = emulation::Pointer<T, emulation::Space::kGlobal>;
template <typename T>
using SharedPtr = emulation::Pointer<T, emulation::Space::kShared>;

template <typename U, typename T, emulation::Space kSpace>
emulation::Pointer<U, kSpace> PtrCast(emulation::Pointer<T, kSpace> pointer) {
  static_assert(std::is_const_v<U> || !std::is_const_v<T>, "a cast may not drop const");
  return {pointer.region(), pointer.generation(), pointer.offset()};
}

template <typename V, typename T, emulation::Space kSpace>
V LoadVec(emulation::Pointer<T, kSpace> from) {
  static_assert(std::is_trivially_copyable_v<V> && alignof(V) == sizeof(V));
  V value;
  std::memcpy(&value, from.Check(0, sizeof(V), sizeof(V)), sizeof(V));
  return value;
}
template <typename V, typename T, emulation::Space kSpace>
void StoreVec(emulation::Pointer<T, kSpace> to, V value) {
  static_assert(!std::is_const_v<T>);
  static_assert(std::is_trivially_copyable_v<V> && alignof(V) == sizeof(V));
  std::memcpy(to.Check(0, sizeof(V), sizeof(V)), &value, sizeof(V));
}

template <typename T>
SharedPtr<T> DynamicShared() {
  const emulation::Region& region = emulation::DynamicShared();
  return {&region, region.generation, 0};
}

// NOLINTBEGIN(bugprone-macro-parentheses): `name` is declared.
// A static variable tells declarations apart, and instantiations of a template as well.
#define SB_SHARED_ARRAY(T, name, count)                                              \
  static constinit ::sparsebalance::kernels::emulation::SharedSite sb_shared_##name{ \
      #name, sizeof(T) * (count)};                                                   \
  const ::sparsebalance::kernels::cuda::SharedPtr<T> name =                          \
      ::sparsebalance::kernels::cuda::internal::SharedArray<T>(sb_shared_##name)
// NOLINTEND(bugprone-macro-parentheses)

namespace internal {

template <typename T>
SharedPtr<T> SharedArray(const emulation::SharedSite& site) {
  static_assert(std::is_trivial_v<T>, "shared memory is not constructed");
  const emulation::Region& region = emulation::StaticShared(site);
  return {&region, region.generation, 0};
}

}  // namespace internal
#endif

}  // namespace sparsebalance::kernels::cuda
