#pragma once

// What every backend checks before an op runs: sizes of views, ranges of shapes, element types.
// INVALID_ARGUMENT names the op, the argument, what it is and what it must be.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::op_checks {

absl::Status EmbeddingForward(int64_t columns, int64_t ids, ConstDeviceBuffer table,
                              DeviceBuffer out);
absl::Status EmbeddingBackward(int64_t columns, int64_t ids, ConstDeviceBuffer out_grad,
                               DeviceBuffer table_grad);

// The shape with the strides that its zeros stand for.
MatmulShape WithStrides(const MatmulShape& shape);
absl::Status Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                    ConstDeviceBuffer bias, DeviceBuffer c);
absl::Status AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x, DeviceBuffer out);

absl::Status RmsNormForward(const NormShape& shape, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                            DeviceBuffer y, DeviceBuffer inverse_rms);
absl::Status RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                             ConstDeviceBuffer inverse_rms, ConstDeviceBuffer y_grad,
                             DeviceBuffer x_grad, DeviceBuffer weight_grad);

absl::Status RopeTable(int head_dim, int64_t positions, DeviceBuffer table);
absl::Status Rope(const RopeShape& shape, ConstDeviceBuffer table, DeviceBuffer x);

absl::Status SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                           DeviceBuffer out);
absl::Status SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                            ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad);

absl::Status Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out);
absl::Status Dropout(const DropoutShape& shape, int64_t keys, ConstDeviceBuffer x, DeviceBuffer y);
absl::Status CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits, int64_t targets,
                          ConstDeviceBuffer weights, DeviceBuffer logits_grad, int64_t loss_sum);

absl::Status AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                   DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy);
absl::Status AddSquaredNorm(int64_t out);

absl::Status BlockMeans(const AttentionShape& shape, const PackedBlocks& blocks,
                        ConstDeviceBuffer k, DeviceBuffer means);
absl::Status CoverageCurves(const AttentionShape& shape, const PackedBlocks& blocks,
                            ConstDeviceBuffer q, ConstDeviceBuffer means, int sample_stride);
absl::Status SelectBlocks(const AttentionShape& shape, const PackedBlocks& blocks,
                          ConstDeviceBuffer q, ConstDeviceBuffer means,
                          const std::vector<int32_t>& budgets);
absl::Status Route(const PackedBlocks& blocks, const RoutingRequest& request);
absl::Status BuildBlockLists(const AttentionShape& shape, const PackedBlocks& blocks,
                             const BlockLists& lists);
absl::Status AttentionForward(const AttentionShape& shape, const PackedBlocks& blocks,
                              const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                              ConstDeviceBuffer v, DeviceBuffer out, DeviceBuffer lse);
absl::Status AttentionBackward(const AttentionShape& shape, const PackedBlocks& blocks,
                               const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                               ConstDeviceBuffer v, ConstDeviceBuffer out, ConstDeviceBuffer lse,
                               ConstDeviceBuffer out_grad, DeviceBuffer q_grad, DeviceBuffer k_grad,
                               DeviceBuffer v_grad);
absl::Status AttentionMass(const AttentionShape& shape, const PackedBlocks& blocks,
                           const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                           int queries);

}  // namespace sparsebalance::kernels::op_checks
