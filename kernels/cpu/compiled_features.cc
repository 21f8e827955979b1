// Compiled with the flags of the kernels, whose predefined macros say what they may use.
#include "kernels/cpu/cpu_features.h"

namespace sparsebalance::kernels::cpu {

// In the order of CpuFeatureNames().
constexpr uint32_t kCompiledFeatures =
#if defined(__AVX__)
    1u << 0 |
#endif
#if defined(__AVX2__)
    1u << 1 |
#endif
#if defined(__FMA__)
    1u << 2 |
#endif
#if defined(__BMI2__)
    1u << 3 |
#endif
#if defined(__AVX512F__)
    1u << 4 |
#endif
#if defined(__AVX512BW__)
    1u << 5 |
#endif
#if defined(__AVX512DQ__)
    1u << 6 |
#endif
#if defined(__AVX512VL__)
    1u << 7 |
#endif
    0u;

}  // namespace sparsebalance::kernels::cpu
