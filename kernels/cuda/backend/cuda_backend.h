#pragma once

// Backend over the kernels of kernels/cuda. Compiled twice, as the kernels are: by nvcc for GPUs
// (CudaPlatform), by the host's compiler for the emulation (EmulatedPlatform).
//
// Ops are queued and return; an error of a kernel shows at a later call. Waiting for the device are
// CopyToHost, Synchronize, Elapsed, CoverageCurves and AttentionMass. Ids and targets lie on the
// device, so that those out of range are known only then: the next CopyToHost or Synchronize is
// INVALID_ARGUMENT and says how many there were.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention/device_blocks.h"
#include "kernels/cuda/backend/platform.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

class CudaBackend final : public Backend {
 public:
  // RESOURCE_EXHAUSTED where the device has no memory for its few own bytes. `options.threads` is
  // not used.
  static absl::StatusOr<std::unique_ptr<Backend>> Create(std::unique_ptr<Platform> platform,
                                                         const BackendOptions& options);
  ~CudaBackend() override;

  std::string_view name() const override { return "cuda"; }
  ElementType activation_type() const override { return options_.activation_type; }
  std::string_view device_name() const override { return platform_->facts().name; }
  std::string_view device_bus_id() const override { return platform_->facts().bus_id; }

  MemoryStats memory() const override { return stats_; }
  void ResetPeakMemory() override { stats_.peak_bytes = stats_.live_bytes; }
  int64_t AllocatedBytes(int64_t bytes) const override;
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
  absl::StatusOr<Routing> Route(const AttentionShape& shape, const AttentionLayout& layout,
                                ConstDeviceBuffer q, ConstDeviceBuffer means,
                                const RoutingRequest& request) override;
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
  int64_t AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                  int64_t pairs) const override;
  int64_t AttentionBackwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                   int64_t pairs) const override;
  // cuBLASLt's workspace does not grow with tokens.
  int64_t MatmulScratch(const MatmulShape& /*shape*/) const override { return 0; }
  int64_t WorkingElements() const override { return platform_->facts().working_elements; }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryPurpose purpose) override;
  void FreeBytes(void* data, int64_t bytes) override;
  absl::Status CopyBytes(const void* from, void* to, int64_t bytes, CopyKind kind) override;
  absl::Status Convert(ConstDeviceBuffer from, DeviceBuffer to) override;

 private:
  class Views;
  class DeviceFactsOfRouting;

  // [sequences, CoverageGridSize of the longest sequence].
  absl::StatusOr<DeviceArray<double>> DeviceCurves(const AttentionShape& shape,
                                                   const AttentionLayout& layout,
                                                   ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                   int sample_stride);
  std::vector<std::vector<double>> CurvesOf(const PackedBlocks& blocks,
                                            const std::vector<double>& curves) const;
  // Lists with room for `pairs` of a head, selected by budgets on the device.
  absl::StatusOr<BlockLists> Select(const AttentionShape& shape, const AttentionLayout& layout,
                                    ConstDeviceBuffer q, ConstDeviceBuffer means,
                                    DeviceSpan<const int32_t> budgets, int64_t pairs);

  CudaBackend(std::unique_ptr<Platform> platform, const BackendOptions& options)
      : options_(options), platform_(std::move(platform)) {}

  // What launchers take. The platform is activated for the calling thread first.
  absl::StatusOr<StreamHandle> ActivateStream();
  template <typename T>
  DevicePtr<T> At(T* address) {
#if defined(__CUDACC__)
    return address;
#else
    if (address == nullptr) return nullptr;
    auto* device = static_cast<emulation::Device*>(platform_->NativeStream());
    const absl::StatusOr<DevicePtr<T>> found = device->Find(address);
    return found.ok() ? *found : DevicePtr<T>(nullptr);
#endif
  }
  template <typename T>
  DevicePtr<T> At(DeviceSpan<T> span) {
    return At(DeviceAccess::Data(span));
  }
  template <typename T>
  DevicePtr<T> At(DeviceBuffer buffer) {
    return At(static_cast<T*>(DeviceAccess::Data(buffer)));
  }
  template <typename T>
  DevicePtr<const T> At(ConstDeviceBuffer buffer) {
    return At(static_cast<const T*>(DeviceAccess::Data(buffer)));
  }
  absl::StatusOr<DeviceArray<std::byte>> Scratch(int64_t bytes) {
    return Allocate<std::byte>(bytes);
  }
  // INVALID_ARGUMENT where kernels have counted ids or targets that are out of range.
  absl::Status CheckIds();

  const BackendOptions options_;
  const std::unique_ptr<Platform> platform_;
  MemoryStats stats_;
  DeviceArray<int32_t> bad_ids_;  // [1], counted by kernels
  bool ids_unchecked_ = false;    // since the counter was last read
};

}  // namespace sparsebalance::kernels::cuda
