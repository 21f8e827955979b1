#pragma once

// Atomic operations on device and shared memory. All return the value from before. Sums of floats
// depend on the order of the threads, so results that must not vary have to avoid them.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

#if defined(__CUDACC__)

namespace internal {

// CUDA names its 64-bit integers otherwise than <cstdint>.
template <typename T>
using AtomicWord =
    std::conditional_t<std::is_integral_v<T>,
                       std::conditional_t<sizeof(T) == 8, unsigned long long,
                                          std::conditional_t<std::is_signed_v<T>, int, unsigned>>,
                       T>;

template <typename T>
SB_DEVICE inline AtomicWord<T>* AsAtomic(T* to) {
  return reinterpret_cast<AtomicWord<T>*>(to);
}

}  // namespace internal

// int32_t, uint32_t, int64_t, uint64_t, float, double.
template <typename T>
SB_DEVICE inline T AtomicAdd(T* to, std::type_identity_t<T> value) {
  return static_cast<T>(
      atomicAdd(internal::AsAtomic(to), static_cast<internal::AtomicWord<T>>(value)));
}
// int32_t, uint32_t.
template <typename T>
SB_DEVICE inline T AtomicMax(T* to, std::type_identity_t<T> value) {
  return atomicMax(to, value);
}
template <typename T>
SB_DEVICE inline T AtomicMin(T* to, std::type_identity_t<T> value) {
  return atomicMin(to, value);
}
template <typename T>
SB_DEVICE inline T AtomicOr(T* to, std::type_identity_t<T> value) {
  return atomicOr(to, value);
}
template <typename T>
SB_DEVICE inline T AtomicAnd(T* to, std::type_identity_t<T> value) {
  return atomicAnd(to, value);
}
// Integers of 32 and 64 bits.
template <typename T>
SB_DEVICE inline T AtomicExchange(T* to, std::type_identity_t<T> value) {
  return static_cast<T>(
      atomicExch(internal::AsAtomic(to), static_cast<internal::AtomicWord<T>>(value)));
}
template <typename T>
SB_DEVICE inline T AtomicCompareExchange(T* to, std::type_identity_t<T> expected,
                                         std::type_identity_t<T> value) {
  return static_cast<T>(atomicCAS(internal::AsAtomic(to),
                                  static_cast<internal::AtomicWord<T>>(expected),
                                  static_cast<internal::AtomicWord<T>>(value)));
}
// A load for loops that wait for another thread's atomic operation.
template <typename T>
SB_DEVICE inline T AtomicLoad(const T* from) {
  return *static_cast<const volatile T*>(from);
}

#else

namespace internal {

template <typename T, emulation::Space kSpace, typename Update>
T AtomicUpdate(emulation::Pointer<T, kSpace> to, Update update) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  T& memory = *to;
  const T before = memory;
  const T after = update(before);
  memory = after;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  emulation::NoteAtomic(std::bit_cast<Bits>(before) != std::bit_cast<Bits>(after));
  return before;
}

}  // namespace internal

template <typename T, emulation::Space kSpace>
T AtomicAdd(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  return internal::AtomicUpdate(to, [value](T before) { return static_cast<T>(before + value); });
}
template <typename T, emulation::Space kSpace>
T AtomicMax(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  return internal::AtomicUpdate(to, [value](T before) { return before < value ? value : before; });
}
template <typename T, emulation::Space kSpace>
T AtomicMin(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  return internal::AtomicUpdate(to, [value](T before) { return value < before ? value : before; });
}
template <typename T, emulation::Space kSpace>
T AtomicOr(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  return internal::AtomicUpdate(to, [value](T before) { return before | value; });
}
template <typename T, emulation::Space kSpace>
T AtomicAnd(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) == 4);
  return internal::AtomicUpdate(to, [value](T before) { return before & value; });
}
template <typename T, emulation::Space kSpace>
T AtomicExchange(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return internal::AtomicUpdate(to, [value](T) { return value; });
}
template <typename T, emulation::Space kSpace>
T AtomicCompareExchange(emulation::Pointer<T, kSpace> to, std::type_identity_t<T> expected,
                        std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>);
  return internal::AtomicUpdate(to, [=](T before) { return before == expected ? value : before; });
}
template <typename T, emulation::Space kSpace>
std::remove_const_t<T> AtomicLoad(emulation::Pointer<T, kSpace> from) {
  const std::remove_const_t<T> value = *from;
  emulation::NoteAtomic(/*changed=*/false);
  return value;
}

#endif

}  // namespace sparsebalance::kernels::cuda
