#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// One AdamW update of `count` values; m and v are the running moments.
void AdamW(int threads, int64_t count, const AdamWArgs& args, const float* grad, float* value,
           float* m, float* v);

}  // namespace sparsebalance::kernels::cpu
