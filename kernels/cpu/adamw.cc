#include "kernels/cpu/adamw.h"

#include <cmath>

#include "kernels/cpu/parallel.h"

namespace sparsebalance::kernels::cpu {

void AdamW(int threads, int64_t count, const AdamWArgs& args, const float* grad, float* value,
           float* m, float* v) {
  const auto steps = static_cast<double>(args.step);
  const auto m_scale = static_cast<float>(1.0 / (1.0 - std::pow(args.beta1, steps)));
  const auto v_scale = static_cast<float>(1.0 / (1.0 - std::pow(args.beta2, steps)));
  const float keep = 1.0F - args.learning_rate * args.weight_decay;
  ParallelRanges(threads, count, 32768, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float g = grad[i] * args.gradient_scale;
      m[i] = args.beta1 * m[i] + (1.0F - args.beta1) * g;
      v[i] = args.beta2 * v[i] + (1.0F - args.beta2) * g * g;
      const float update = m[i] * m_scale / (std::sqrt(v[i] * v_scale) + args.epsilon);
      value[i] = value[i] * keep - args.learning_rate * update;
    }
  });
}

}  // namespace sparsebalance::kernels::cpu
