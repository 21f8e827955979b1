#include <algorithm>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_grads.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;

// row_terms [num_heads, tokens] = out . out_grad: what the softmax subtracts from the gradient of
// every probability of the query. A thread has 16 bytes of a row; head_dim is a power of two.
template <typename T>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kRowThreads)
    RowTerms(AttentionShape shape, int64_t tokens, DevicePtr<const T> out,
             DevicePtr<const T> out_grad, DevicePtr<float> row_terms) {
  const int threads_of_row = shape.head_dim / kVector<T>;
  const int64_t token = GlobalThread() / threads_of_row;
  const int64_t head = BlockIdx().y;
  float sum = 0.0F;
  if (token < tokens) {
    const int64_t at = token * shape.out_stride + head * shape.head_dim +
                       LinearThread() % threads_of_row * kVector<T>;
    float a[kVector<T>];
    float b[kVector<T>];
    LoadFloats(out + at, a);
    LoadFloats(out_grad + at, b);
    SB_UNROLL
    for (int i = 0; i < kVector<T>; ++i) sum += a[i] * b[i];
  }
  for (int mask = threads_of_row / 2; mask > 0; mask /= 2) sum += ShflXor(kAllLanes, sum, mask);
  if (token < tokens && LinearThread() % threads_of_row == 0) {
    row_terms[head * tokens + token] = sum;
  }
}

int64_t RowTermBytes(const AttentionShape& shape, const DeviceBlocks& blocks) {
  return Aligned(shape.num_heads * blocks.tokens * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

template <typename T>
int64_t AttentionBackwardScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                                      int64_t pairs, int64_t scratch_limit_bytes) {
  // The two halves follow each other in the same scratch.
  const int64_t row_terms = RowTermBytes(shape, blocks);
  const int64_t query_bytes = QueryGradBytesOfHead<T>(shape, blocks, pairs);
  const int64_t key_bytes = KeyGradBytesOfKvHead(shape, blocks, pairs);
  const int64_t left = std::max<int64_t>(scratch_limit_bytes - row_terms, 0);
  return row_terms + std::max(query_bytes * HeadsOfRound(shape.num_heads, query_bytes, left),
                              key_bytes * HeadsOfRound(shape.num_kv_heads, key_bytes, left));
}

template <typename T>
absl::Status LaunchAttentionBackward(StreamHandle stream, const AttentionShape& shape,
                                     const DeviceBlocks& blocks, const DeviceLists& lists,
                                     const AttentionBackwardTensors<T>& tensors,
                                     int64_t scratch_bytes, DevicePtr<std::byte> scratch) {
  SB_RETURN_IF_ERROR(CheckAttention(shape, blocks, lists));
  const AttentionPlan plan = MakeAttentionPlan(shape, blocks, lists);
  const int64_t left = scratch_bytes - RowTermBytes(shape, blocks);
  const DevicePtr<float> row_terms = PtrCast<float>(scratch);
  const DevicePtr<std::byte> partials = scratch + RowTermBytes(shape, blocks);
  // Before anything is launched.
  SB_RETURN_IF_ERROR(
      HeadsOfScratch(1, KeyGradBytesOfKvHead(shape, blocks, lists.pairs), left, "one KV head")
          .status());
  SB_RETURN_IF_ERROR(
      HeadsOfScratch(1, QueryGradBytesOfHead<T>(shape, blocks, lists.pairs), left, "one head")
          .status());
  const int64_t threads = blocks.tokens * (shape.head_dim / kVector<T>);
  SB_ASSIGN_OR_RETURN(const Dim3 grid, UnitGrid(CeilDiv(threads, kRowThreads), shape.num_heads));
  SB_RETURN_IF_ERROR(Launch(RowTerms<T>,
                            {.grid = grid, .block = {kRowThreads}, .name = "row_terms"}, stream,
                            shape, blocks.tokens, tensors.out, tensors.out_grad, row_terms));
  SB_RETURN_IF_ERROR(LaunchKeyGrads<T>(stream, plan, tensors, row_terms, left, partials));
  return LaunchQueryGrads<T>(stream, plan, tensors, row_terms, left, partials);
}

#define SB_INSTANTIATE(T)                                                                       \
  template int64_t AttentionBackwardScratchBytes<T>(const AttentionShape&, const DeviceBlocks&, \
                                                    int64_t, int64_t);                          \
  template absl::Status LaunchAttentionBackward<T>(                                             \
      StreamHandle, const AttentionShape&, const DeviceBlocks&, const DeviceLists&,             \
      const AttentionBackwardTensors<T>&, int64_t, DevicePtr<std::byte>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
