#pragma once

#include <cstdint>

namespace sparsebalance::kernels::cpu {

// gate_up [rows, 2 * columns] holds gate, then up. out = silu(gate) * up.
void SwiGluForward(int threads, int64_t rows, int64_t columns, const float* gate_up, float* out);

void SwiGluBackward(int threads, int64_t rows, int64_t columns, const float* gate_up,
                    const float* out_grad, float* gate_up_grad);

}  // namespace sparsebalance::kernels::cpu
