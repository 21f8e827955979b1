#pragma once

// Rows of a table by id, and the table's gradient, on a GPU. Nothing here allocates or waits for
// the device.
//
// An id outside of [0, table_rows) gives a row of zeros forward and nothing backward; it is counted
// into bad_ids[0], unless that is null.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

struct EmbeddingShape {
  int64_t tokens = 0;  // below 2^31
  int64_t columns = 0;
  int64_t table_rows = 0;  // below 2^31
};

// out [tokens, columns] = table [table_rows, columns] at ids. <T, W>: the types of out and table;
// <float, float>, <Bf16, float> and <Bf16, Bf16> exist.
template <typename T, typename W>
absl::Status LaunchEmbeddingForward(StreamHandle stream, const EmbeddingShape& shape,
                                    DevicePtr<const int32_t> ids, DevicePtr<const W> table,
                                    DevicePtr<T> out, DevicePtr<int32_t> bad_ids);

// Bytes of scratch.
int64_t EmbeddingBackwardScratch(const EmbeddingShape& shape);

// table_grad[ids[t]] += out_grad[t], in the order of t, one after another: the same bits as on the
// CPU. Every id has a list of its tokens, and every row of the table a warp for each 32 vectors of
// columns. INVALID_ARGUMENT: 2^31 tokens or rows, or more. T: out_grad's type, float or Bf16.
template <typename T>
absl::Status LaunchEmbeddingBackward(StreamHandle stream, const EmbeddingShape& shape,
                                     DevicePtr<const int32_t> ids, DevicePtr<const T> out_grad,
                                     DevicePtr<float> table_grad, DevicePtr<int32_t> bad_ids,
                                     DevicePtr<int32_t> scratch);

}  // namespace sparsebalance::kernels::cuda
