#pragma once

// cp.async: copies from global to shared memory that go on while the thread computes.
//
//   CpAsync<16>(tile + 8 * i, x + 8 * i);  // as many as are wanted
//   CpAsyncCommit();                       // makes them a group
//   CpAsyncWait<0>();                      // none of this thread's groups is left
//   SyncThreads();                         // nor of the other threads'
//
// Both addresses must be multiples of kBytes (4, 8 or 16). Between the call and the wait the
// destination must not be read; the emulation fills it with NaN bytes.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// Copies the first `source_bytes` and fills the rest of kBytes with zeros; with 0 the source is not
// read.
template <int kBytes, typename D, typename S>
SB_DEVICE inline void CpAsync(SharedPtr<D> to, DevicePtr<S> from, int source_bytes) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  static_assert(std::is_same_v<D, std::remove_const_t<S>>, "both sides have one type");
#if defined(__CUDACC__)
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const auto global = __cvta_generic_to_global(from);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global),
                 "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(source_bytes)
                 : "memory");
  }
#else
  if (source_bytes < 0 || source_bytes > kBytes) {
    emulation::Fail("a copy of " + std::to_string(kBytes) + " bytes takes " +
                    std::to_string(source_bytes) + " from its source");
  }
  const std::byte* source = source_bytes > 0 ? from.Check(0, source_bytes, kBytes) : nullptr;
  emulation::CopyAsync(to.Check(0, kBytes, kBytes), source, kBytes, source_bytes);
#endif
}

template <int kBytes, typename D, typename S>
SB_DEVICE inline void CpAsync(SharedPtr<D> to, DevicePtr<S> from) {
  CpAsync<kBytes>(to, from, kBytes);
}

SB_DEVICE inline void CpAsyncCommit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#else
  emulation::CommitCopies();
#endif
}

// Returns when at most the last kPending groups of this thread are still under way.
template <int kPending>
SB_DEVICE inline void CpAsyncWait() {
  static_assert(kPending >= 0);
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#else
  emulation::WaitForCopies(kPending);
#endif
}

// Waits for every copy of this thread, committed or not.
SB_DEVICE inline void CpAsyncWaitAll() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_all;\n" ::: "memory");
#else
  emulation::WaitForCopies(-1);
#endif
}

}  // namespace sparsebalance::kernels::cuda
