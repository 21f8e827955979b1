#pragma once

// Words and types of kernels that nvcc compiles for a GPU and the host's compiler for the
// emulation (kernels/emulation). docs/gpu.md says how to write such a kernel.

#include "kernels/host_device.h"

#if defined(__CUDACC__)

#define SB_GLOBAL __global__
#define SB_DEVICE __device__
#define SB_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define SB_RESTRICT __restrict__
#define SB_UNROLL _Pragma("unroll")
// Last parameter of operations that are checked to be called from one place.
#define SB_CALL_SITE
#define SB_LAST_CALL_SITE

#else

#define SB_GLOBAL
#define SB_DEVICE
#define SB_LAUNCH_BOUNDS(...)
#define SB_RESTRICT
#define SB_UNROLL
#define SB_CALL_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SB_LAST_CALL_SITE , SB_CALL_SITE

#endif

namespace sparsebalance::kernels::cuda {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Vectors that are loaded and stored at once, by CUDA's names.
#if defined(__CUDACC__)
using ::float2;
using ::float4;
using ::int2;
using ::int4;
using ::uint2;
using ::uint4;
#else
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
#endif

}  // namespace sparsebalance::kernels::cuda
