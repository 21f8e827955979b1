#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/dense/adamw.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {
namespace {

// What all elements have in common.
struct Update {
  float learning_rate, beta1, beta2, epsilon, gradient_scale;
  float keep;              // of the value, by weight decay
  float m_scale, v_scale;  // against the moments' bias
};

template <typename G, int N>
SB_DEVICE inline void UpdateAt(int64_t at, const Update& update, DevicePtr<const G> grad,
                               DevicePtr<float> value, DevicePtr<float> m, DevicePtr<float> v,
                               DevicePtr<Bf16> copy) {
  float grads[N];
  float values[N];
  float first[N];
  float second[N];
  LoadFloats<N>(grad + at, grads);
  LoadFloats<N>(value + at, values);
  LoadFloats<N>(m + at, first);
  LoadFloats<N>(v + at, second);
  SB_UNROLL
  for (int i = 0; i < N; ++i) {
    const float g = grads[i] * update.gradient_scale;
    first[i] = update.beta1 * first[i] + (1.0F - update.beta1) * g;
    second[i] = update.beta2 * second[i] + (1.0F - update.beta2) * g * g;
    const float step =
        first[i] * update.m_scale / (std::sqrt(second[i] * update.v_scale) + update.epsilon);
    values[i] = values[i] * update.keep - update.learning_rate * step;
  }
  StoreFloats<N>(value + at, values);
  StoreFloats<N>(m + at, first);
  StoreFloats<N>(v + at, second);
  if (copy != nullptr) StoreFloats<N>(copy + at, values);
}

template <typename G, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    AdamW(int64_t count, Update update, DevicePtr<const G> grad, DevicePtr<float> value,
          DevicePtr<float> m, DevicePtr<float> v, DevicePtr<Bf16> copy) {
  const int64_t whole = count / N * N;
  for (int64_t at = GlobalThread() * N; at < whole; at += ThreadStep() * N) {
    UpdateAt<G, N>(at, update, grad, value, m, v, copy);
  }
  for (int64_t at = whole + GlobalThread(); at < count; at += ThreadStep()) {
    UpdateAt<G, 1>(at, update, grad, value, m, v, copy);
  }
}

}  // namespace

template <typename G>
absl::Status LaunchAdamW(StreamHandle stream, int64_t count, const AdamWArgs& args,
                         DevicePtr<const G> grad, DevicePtr<float> value, DevicePtr<float> m,
                         DevicePtr<float> v, DevicePtr<Bf16> copy) {
  if (args.step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: step is ", args.step, ", must be at least 1"));
  }
  if (count == 0) return absl::OkStatus();
  const auto steps = static_cast<double>(args.step);
  const Update update{.learning_rate = args.learning_rate,
                      .beta1 = args.beta1,
                      .beta2 = args.beta2,
                      .epsilon = args.epsilon,
                      .gradient_scale = args.gradient_scale,
                      .keep = 1.0F - args.learning_rate * args.weight_decay,
                      .m_scale = static_cast<float>(1.0 / (1.0 - std::pow(args.beta1, steps))),
                      .v_scale = static_cast<float>(1.0 / (1.0 - std::pow(args.beta2, steps)))};
  // Vectors of 4: 16 bytes of every float, and few enough registers.
  const bool wide = RowsFit(1, count, grad, value, m, v, copy);
  return Launch(wide ? AdamW<G, 4> : AdamW<G, 1>,
                {.grid = {BlocksFor(count, int64_t{kThreads} * (wide ? 4 : 1))},
                 .block = {kThreads},
                 .name = "adamw"},
                stream, count, update, grad, value, m, v, copy);
}

#define SB_INSTANTIATE(G)                                                                      \
  template absl::Status LaunchAdamW<G>(StreamHandle, int64_t, const AdamWArgs&,                \
                                       DevicePtr<const G>, DevicePtr<float>, DevicePtr<float>, \
                                       DevicePtr<float>, DevicePtr<Bf16>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
