#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/memory_pool.h"

namespace sparsebalance::kernels::cpu {

// The CPU implementation of Backend. Every call has finished when it returns, so streams are all
// the same and events only note the time. This class checks sizes; the ops are in the files beside.
class CpuBackend final : public Backend {
 public:
  // INVALID_ARGUMENT where options.threads < 1 or activations are not fp32; INTERNAL where oneDNN
  // has no CPU engine.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options);

  std::string_view name() const override { return "cpu"; }

  ElementType activation_type() const override { return ElementType::kFloat32; }
  MemoryStats memory() const override { return pool_.stats(); }
  void ResetPeakMemory() override { pool_.ResetPeak(); }
  absl::Status Fill(DeviceBuffer buffer, float value) override;
  absl::Status FillZero(DeviceSpan<double> buffer) override;
  absl::StatusOr<float*> MapHost(DeviceBuffer buffer) override;
  absl::StatusOr<NativeBuffer> Native(DeviceBuffer buffer) override;

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status SetStream(Stream* stream) override;
  absl::StatusOr<std::unique_ptr<Event>> RecordEvent() override;
  absl::Status WaitEvent(const Event& event) override;
  absl::StatusOr<EventInterval> Elapsed(const Event& from, const Event& to) override;
  absl::Status Synchronize() override;

  absl::Status EmbeddingForward(int64_t columns, DeviceSpan<const int32_t> ids,
                                ConstDeviceBuffer table, DeviceBuffer out) override;
  absl::Status EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                 ConstDeviceBuffer out_grad, DeviceBuffer table_grad) override;
  absl::Status Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                      ConstDeviceBuffer bias, DeviceBuffer c) override;
  absl::Status AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                             DeviceBuffer out) override;
  absl::Status RmsNormForward(const NormShape& shape, ConstDeviceBuffer x, ConstDeviceBuffer weight,
                              DeviceBuffer y, DeviceBuffer inverse_rms) override;
  absl::Status RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x,
                               ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                               ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                               DeviceBuffer weight_grad) override;
  absl::Status RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                         DeviceBuffer table) override;
  absl::Status Rope(const RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                    DeviceBuffer x) override;
  absl::Status SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                             DeviceBuffer out) override;
  absl::Status SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                              ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) override;
  absl::Status Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) override;
  absl::Status Scale(float factor, DeviceBuffer x) override;
  absl::Status Dropout(const DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                       ConstDeviceBuffer x, DeviceBuffer y) override;
  absl::Status CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits,
                            DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                            DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) override;
  absl::Status AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                     DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy) override;
  absl::Status AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) override;

  absl::StatusOr<std::unique_ptr<AttentionLayout>> CreateLayout(PackedBlocks blocks) override;
  absl::Status BlockMeans(const AttentionShape& shape, const AttentionLayout& layout,
                          ConstDeviceBuffer k, DeviceBuffer means) override;
  absl::StatusOr<std::vector<std::vector<double>>> CoverageCurves(const AttentionShape& shape,
                                                                  const AttentionLayout& layout,
                                                                  ConstDeviceBuffer q,
                                                                  ConstDeviceBuffer means,
                                                                  int sample_stride) override;
  absl::StatusOr<BlockLists> SelectBlocks(const AttentionShape& shape,
                                          const AttentionLayout& layout, ConstDeviceBuffer q,
                                          ConstDeviceBuffer means,
                                          const std::vector<int32_t>& budgets) override;
  absl::Status BuildBlockLists(const AttentionShape& shape, const AttentionLayout& layout,
                               BlockLists* lists) override;
  absl::Status AttentionForward(const AttentionShape& shape, const AttentionLayout& layout,
                                const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                                ConstDeviceBuffer v, DeviceBuffer out, DeviceBuffer lse) override;
  absl::Status AttentionBackward(const AttentionShape& shape, const AttentionLayout& layout,
                                 const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                                 ConstDeviceBuffer v, ConstDeviceBuffer out, ConstDeviceBuffer lse,
                                 ConstDeviceBuffer out_grad, DeviceBuffer q_grad,
                                 DeviceBuffer k_grad, DeviceBuffer v_grad) override;
  absl::StatusOr<std::vector<double>> AttentionMass(const AttentionShape& shape,
                                                    const AttentionLayout& layout,
                                                    const BlockLists& lists, ConstDeviceBuffer q,
                                                    ConstDeviceBuffer k, int queries) override;
  int64_t AllocatedBytes(int64_t bytes) const override { return MemoryPool::TakenBytes(bytes); }
  int64_t AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                  int64_t pairs) const override;
  int64_t AttentionBackwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                   int64_t pairs) const override;
  int64_t MatmulScratch(const MatmulShape& shape) const override;
  int64_t WorkingElements() const override { return int64_t{1} << 22; }  // 16 MiB

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryPurpose purpose) override;
  void FreeBytes(void* data, int64_t bytes) override;
  absl::Status CopyBytes(const void* from, void* to, int64_t bytes, CopyKind kind) override;
  absl::Status Convert(ConstDeviceBuffer from, DeviceBuffer to) override;

 private:
  explicit CpuBackend(const BackendOptions& options);

  int threads_;
  MemoryPool pool_;
  MatmulEngine matmul_;
};

}  // namespace sparsebalance::kernels::cpu
