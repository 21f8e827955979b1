#pragma once

// Kernels that use everything in kernels/cuda/device, and what launches them. Tests run them in the
// emulation and compile them for GPUs; they are examples of how to write one, too.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

// sums[b] = the sum of the b-th `threads` elements of x [n]; sums has ceil(n / threads) elements.
// threads: a power of 2, at least 32.
absl::Status LaunchBlockSums(StreamHandle stream, DevicePtr<const float> x, int64_t n, int threads,
                             DevicePtr<float> sums);

// y[i] = x[j] + ... + x[i], j being the first element of i's 32.
absl::Status LaunchWarpScan(StreamHandle stream, DevicePtr<const int32_t> x, int64_t n,
                            DevicePtr<int32_t> y);

// counts[v] += how many of x [n] are v, for values in [0, 64); total[0] += sum of x;
// largest[0] = max(largest[0], x).
absl::Status LaunchHistogram(StreamHandle stream, DevicePtr<const int32_t> x, int64_t n,
                             DevicePtr<int32_t> counts, DevicePtr<float> total,
                             DevicePtr<int32_t> largest);

// to = 2 * from, in steps that are copied by cp.async while the one before is worked on. One block.
absl::Status LaunchBufferedDouble(StreamHandle stream, DevicePtr<const float> from, int64_t n,
                                  DevicePtr<float> to);

// c [m, n] = a b with a [m, k], and b [k, n] or, transposed, [n, k]. m and n: multiples of 64,
// k: of 32.
absl::Status LaunchTileProduct(StreamHandle stream, DevicePtr<const Bf16> a,
                               DevicePtr<const Bf16> b, bool transposed_b, int64_t m, int64_t n,
                               int64_t k, DevicePtr<float> c);

// c [16, 8] = a b + c by one warp; a is [16, 16], and b [16, 8], or the transposed of these.
absl::Status LaunchFragmentProduct(StreamHandle stream, DevicePtr<const Bf16> a, bool transposed_a,
                                   DevicePtr<const Bf16> b, bool transposed_b, DevicePtr<float> c);

// What the others leave out, on 64 elements that are all 1 before and 3 after.
absl::Status LaunchMiscellany(StreamHandle stream, DevicePtr<float> x, DevicePtr<uint32_t> scratch);

}  // namespace sparsebalance::kernels::cuda
