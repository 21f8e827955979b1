#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/dense/rope.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {
namespace {

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    RopeTable(int64_t tokens, int head_dim, double theta, DevicePtr<const int32_t> positions,
              DevicePtr<float> table) {
  const int half = head_dim / 2;
  for (int64_t token = FirstRow(); token < tokens; token += RowStep()) {
    const auto position = static_cast<double>(positions[token]);
    const DevicePtr<float> row = table + token * head_dim;
    for (int i = LaneId(); i < half; i += 32) {
      const double angle = position * std::pow(theta, -2.0 * i / head_dim);
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    Rope(int64_t tokens, int num_heads, int head_dim, int64_t row_stride,
         DevicePtr<const float> table, float sign, DevicePtr<T> x) {
  const int half = head_dim / 2;
  const int vectors = half / N;  // of a head's lower half
  for (int64_t token = FirstRow(); token < tokens; token += RowStep()) {
    const DevicePtr<const float> row = table + token * head_dim;
    for (int item = LaneId(); item < num_heads * vectors; item += 32) {
      const int64_t head = item / vectors;
      const int i = item % vectors * N;
      const DevicePtr<T> low = x + token * row_stride + head * head_dim + i;
      float cosine[N];
      float sine[N];
      float a[N];
      float b[N];
      LoadFloats<N>(row + i, cosine);
      LoadFloats<N>(row + half + i, sine);
      LoadFloats<N>(low, a);
      LoadFloats<N>(low + half, b);
      SB_UNROLL
      for (int j = 0; j < N; ++j) {
        const float turned = a[j] * cosine[j] - sign * b[j] * sine[j];
        b[j] = b[j] * cosine[j] + sign * a[j] * sine[j];
        a[j] = turned;
      }
      StoreFloats<N>(low, a);
      StoreFloats<N>(low + half, b);
    }
  }
}

absl::Status CheckHeadDim(int head_dim) {
  if (head_dim >= 2 && head_dim % 2 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("RoPE: head_dim is ", head_dim, ", must be even and at least 2"));
}

}  // namespace

absl::Status LaunchRopeTable(StreamHandle stream, int64_t tokens, int head_dim, double theta,
                             DevicePtr<const int32_t> positions, DevicePtr<float> table) {
  if (absl::Status status = CheckHeadDim(head_dim); !status.ok() || tokens == 0) return status;
  return Launch(RopeTable, RowsConfig("rope_table", tokens), stream, tokens, head_dim, theta,
                positions, table);
}

template <typename T>
absl::Status LaunchRope(StreamHandle stream, const RopeShape& shape, DevicePtr<const float> table,
                        bool inverse, DevicePtr<T> x) {
  if (absl::Status status = CheckHeadDim(shape.head_dim); !status.ok() || shape.tokens == 0) {
    return status;
  }
  const bool wide =
      RowsFit(kVector<T>, shape.head_dim / 2, table, x) && shape.row_stride % kVector<T> == 0;
  return Launch(wide ? Rope<T, kVector<T>> : Rope<T, 1>, RowsConfig("rope", shape.tokens), stream,
                shape.tokens, shape.num_heads, shape.head_dim, shape.row_stride, table,
                inverse ? -1.0F : 1.0F, x);
}

template absl::Status LaunchRope<float>(StreamHandle, const RopeShape&, DevicePtr<const float>,
                                        bool, DevicePtr<float>);
template absl::Status LaunchRope<Bf16>(StreamHandle, const RopeShape&, DevicePtr<const float>, bool,
                                       DevicePtr<Bf16>);

}  // namespace sparsebalance::kernels::cuda
