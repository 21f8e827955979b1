#pragma once

#include <cstdint>

namespace sparsebalance::kernels::cpu {

// loss_sum += sum of weights[r] * -log softmax(logits[r])[targets[r]]; row_losses [rows] is
// scratch. logits_grad (may be logits, may be null) = loss_scale * weights[r] * (softmax - onehot),
// exactly 0 in rows of weight 0.
void CrossEntropy(int threads, int64_t rows, int64_t classes, double loss_scale,
                  const float* logits, const int32_t* targets, const float* weights,
                  float* logits_grad, double* row_losses, double* loss_sum);

}  // namespace sparsebalance::kernels::cpu
