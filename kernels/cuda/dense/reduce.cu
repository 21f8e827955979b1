#include "kernels/cuda/dense/column_sums.h"
#include "kernels/cuda/dense/reduce.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    ColumnSums(int64_t rows, int64_t columns, int64_t piece_rows, DevicePtr<const T> x,
               DevicePtr<float> partials) {
  internal::SumPiece<N, /*kAdd=*/false>(rows, columns, piece_rows, partials,
                                        [&](int64_t row, int64_t c, float(&values)[N]) {
                                          LoadFloats<N>(x + row * columns + c, values);
                                        });
}

// Elements of x that a block adds at least; then the grid has as many blocks as there are partial
// sums. Always vectors of the same length, so that the order of the sum does not depend on where x
// lies.
constexpr int64_t kBlockElements = int64_t{32} * kThreads;

template <typename T, bool kWide>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    SquaredNorms(int64_t count, DevicePtr<const T> x, DevicePtr<double> partials) {
  constexpr int kElements = kVector<T>;
  double sum = 0;
  for (int64_t at = GlobalThread() * kElements; at < count; at += ThreadStep() * kElements) {
    float values[kElements] = {};
    if (kWide && at + kElements <= count) {
      LoadFloats<kElements>(x + at, values);
    } else {
      SB_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (at + i < count) values[i] = ToFloat(x[at + i]);
      }
    }
    SB_UNROLL
    for (int i = 0; i < kElements; ++i) sum += static_cast<double>(values[i]) * values[i];
  }
  sum = BlockSum<kThreads>(sum);
  if (LinearThread() == 0) partials[BlockIdx().x] = sum;
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    AddNorms(int64_t blocks, DevicePtr<const double> partials, DevicePtr<double> out) {
  double sum = 0;
  for (int64_t i = LinearThread(); i < blocks; i += kThreads) sum += partials[i];
  sum = BlockSum<kThreads>(sum);
  if (LinearThread() == 0) out[0] += sum;
}

}  // namespace

int64_t AddColumnSumsScratch(int64_t rows, int64_t columns) {
  return internal::ColumnSumsBytes(rows, columns);
}

template <typename T>
absl::Status LaunchAddColumnSums(StreamHandle stream, int64_t rows, int64_t columns,
                                 DevicePtr<const T> x, DevicePtr<float> out,
                                 DevicePtr<float> scratch) {
  if (rows == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, columns, x, scratch);
  SB_RETURN_IF_ERROR(Launch(
      wide ? ColumnSums<T, kVector<T>> : ColumnSums<T, 1>,
      internal::SumConfig("column_sums", columns, internal::Pieces(rows), wide ? kVector<T> : 1),
      stream, rows, columns, internal::PieceRows(rows), x, scratch));
  return internal::LaunchAddPieces(stream, rows, columns, scratch, out);
}

int64_t AddSquaredNormScratch(int64_t count) {
  return int64_t{BlocksFor(count, kBlockElements)} * static_cast<int64_t>(sizeof(double));
}

template <typename T>
absl::Status LaunchAddSquaredNorm(StreamHandle stream, int64_t count, DevicePtr<const T> x,
                                  DevicePtr<double> out, DevicePtr<double> scratch) {
  if (count == 0) return absl::OkStatus();
  const unsigned blocks = BlocksFor(count, kBlockElements);
  SB_RETURN_IF_ERROR(Launch(IsAligned(x) ? SquaredNorms<T, true> : SquaredNorms<T, false>,
                            {.grid = {blocks}, .block = {kThreads}, .name = "squared_norms"},
                            stream, count, x, scratch));
  return Launch(AddNorms, {.block = {kThreads}, .name = "add_norms"}, stream, int64_t{blocks},
                scratch, out);
}

#define SB_INSTANTIATE(T)                                                                          \
  template absl::Status LaunchAddColumnSums<T>(StreamHandle, int64_t, int64_t, DevicePtr<const T>, \
                                               DevicePtr<float>, DevicePtr<float>);                \
  template absl::Status LaunchAddSquaredNorm<T>(StreamHandle, int64_t, DevicePtr<const T>,         \
                                                DevicePtr<double>, DevicePtr<double>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
