#include "absl/strings/str_cat.h"
#include "kernels/cuda/dense/elementwise.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/dropout_mask.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Calls body.At<N>(i) for whole vectors, and body.At<1>(i) for the elements that are left.
template <int N, typename Body>
SB_DEVICE inline void ForVectors(int64_t count, const Body& body) {
  const int64_t whole = count / N * N;
  for (int64_t i = GlobalThread() * N; i < whole; i += ThreadStep() * N) body.template At<N>(i);
  for (int64_t i = whole + GlobalThread(); i < count; i += ThreadStep()) body.template At<1>(i);
}

template <typename T>
struct AddBody {
  DevicePtr<const T> a, b;
  DevicePtr<T> out;
  template <int N>
  SB_DEVICE void At(int64_t i) const {
    float left[N];
    float right[N];
    LoadFloats<N>(a + i, left);
    LoadFloats<N>(b + i, right);
    SB_UNROLL
    for (int j = 0; j < N; ++j) left[j] += right[j];
    StoreFloats<N>(out + i, left);
  }
};

template <typename T>
struct ScaleBody {
  float factor;
  DevicePtr<T> x;
  template <int N>
  SB_DEVICE void At(int64_t i) const {
    float values[N];
    LoadFloats<N>(x + i, values);
    SB_UNROLL
    for (int j = 0; j < N; ++j) values[j] *= factor;
    StoreFloats<N>(x + i, values);
  }
};

template <typename T>
struct FillBody {
  float value;
  DevicePtr<T> x;
  template <int N>
  SB_DEVICE void At(int64_t i) const {
    float values[N];
    SB_UNROLL
    for (int j = 0; j < N; ++j) values[j] = value;
    StoreFloats<N>(x + i, values);
  }
};

template <typename From, typename To>
struct ConvertBody {
  DevicePtr<const From> from;
  DevicePtr<To> to;
  template <int N>
  SB_DEVICE void At(int64_t i) const {
    float values[N];
    LoadFloats<N>(from + i, values);
    StoreFloats<N>(to + i, values);
  }
};

template <int N, typename Body>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads) Elementwise(int64_t count, Body body) {
  ForVectors<N>(count, body);
}

template <typename T, typename Body>
absl::Status LaunchElementwise(const char* name, StreamHandle stream, int64_t count, bool wide,
                               const Body& body) {
  if (count == 0) return absl::OkStatus();
  const int n = wide ? kVector<T> : 1;
  return Launch(
      wide ? Elementwise<kVector<T>, Body> : Elementwise<1, Body>,
      {.grid = {BlocksFor(count, int64_t{kThreads} * n)}, .block = {kThreads}, .name = name},
      stream, count, body);
}

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    Dropout(int64_t rows, int64_t columns, uint32_t site, uint32_t threshold, float scale,
            bool accumulate, DevicePtr<const uint64_t> keys, DevicePtr<const T> x, DevicePtr<T> y) {
  for (int64_t row = FirstRow(); row < rows; row += RowStep()) {
    const uint64_t bits = DropoutRow(keys[row], site);
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N];
      LoadFloats<N>(x + row * columns + c, values);
      SB_UNROLL
      for (int i = 0; i < N; ++i) {
        values[i] = DropoutKeeps(bits, c + i, threshold) ? values[i] * scale : 0.0F;
      }
      if (accumulate) {
        float sums[N];
        LoadFloats<N>(y + row * columns + c, sums);
        SB_UNROLL
        for (int i = 0; i < N; ++i) values[i] += sums[i];
      }
      StoreFloats<N>(y + row * columns + c, values);
    }
  }
}

}  // namespace

template <typename T>
absl::Status LaunchAdd(StreamHandle stream, int64_t count, DevicePtr<const T> a,
                       DevicePtr<const T> b, DevicePtr<T> out) {
  return LaunchElementwise<T>("add", stream, count, RowsFit(1, count, a, b, out),
                              AddBody<T>{a, b, out});
}

template <typename T>
absl::Status LaunchScale(StreamHandle stream, int64_t count, float factor, DevicePtr<T> x) {
  return LaunchElementwise<T>("scale", stream, count, IsAligned(x), ScaleBody<T>{factor, x});
}

template <typename T>
absl::Status LaunchFill(StreamHandle stream, int64_t count, float value, DevicePtr<T> x) {
  return LaunchElementwise<T>("fill", stream, count, IsAligned(x), FillBody<T>{value, x});
}

// Vectors of one count on both sides: 16 bytes of the wider type, 8 of the other.
template <typename From, typename To>
absl::Status LaunchConvert(StreamHandle stream, int64_t count, DevicePtr<const From> from,
                           DevicePtr<To> to) {
  return LaunchElementwise<float>("convert", stream, count, IsAligned(from) && IsAligned(to),
                                  ConvertBody<From, To>{from, to});
}

template <typename T>
absl::Status LaunchDropout(StreamHandle stream, const DropoutShape& shape,
                           DevicePtr<const uint64_t> keys, DevicePtr<const T> x, DevicePtr<T> y) {
  if (!(shape.rate >= 0 && shape.rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Dropout: rate is ", shape.rate, ", must lie in [0, 1)"));
  }
  if (shape.rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, shape.columns, x, y);
  return Launch(wide ? Dropout<T, kVector<T>> : Dropout<T, 1>, RowsConfig("dropout", shape.rows),
                stream, shape.rows, shape.columns, shape.site, DropoutThreshold(shape.rate),
                1.0F / (1.0F - shape.rate), shape.accumulate, keys, x, y);
}

#define SB_INSTANTIATE(T)                                                               \
  template absl::Status LaunchAdd<T>(StreamHandle, int64_t, DevicePtr<const T>,         \
                                     DevicePtr<const T>, DevicePtr<T>);                 \
  template absl::Status LaunchScale<T>(StreamHandle, int64_t, float, DevicePtr<T>);     \
  template absl::Status LaunchFill<T>(StreamHandle, int64_t, float, DevicePtr<T>);      \
  template absl::Status LaunchDropout<T>(StreamHandle, const DropoutShape&,             \
                                         DevicePtr<const uint64_t>, DevicePtr<const T>, \
                                         DevicePtr<T>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE
template absl::Status LaunchConvert<float, Bf16>(StreamHandle, int64_t, DevicePtr<const float>,
                                                 DevicePtr<Bf16>);
template absl::Status LaunchConvert<Bf16, float>(StreamHandle, int64_t, DevicePtr<const Bf16>,
                                                 DevicePtr<float>);

}  // namespace sparsebalance::kernels::cuda
