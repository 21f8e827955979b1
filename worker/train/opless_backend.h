// A device that has memory, streams and events by FakeGpu, and no op. For tests of what comes
// around the ops. Host code cannot reach its memory by address, as with a GPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "worker/comm/fake_nccl.h"

namespace sparsebalance::train_testing {

class OplessBackend final : public kernels::Backend {
  using Gpu = comm_testing::FakeGpu;
  using ConstDeviceBuffer = kernels::ConstDeviceBuffer;
  using DeviceBuffer = kernels::DeviceBuffer;
  template <typename T>
  using DeviceSpan = kernels::DeviceSpan<T>;

 public:
  explicit OplessBackend(Gpu* gpu) : gpu_(gpu) {
    (void)gpu_->CreateStream(&default_);
    current_ = default_;
  }

  void* current_stream() const { return current_; }
  // What a kernel of backward does: the values are there when the current stream gets to it.
  void EnqueueWrite(const std::vector<float>& values, DeviceBuffer to) {
    void* pinned = nullptr;
    const size_t bytes = values.size() * sizeof(float);
    (void)gpu_->AllocatePinned(&pinned, bytes);
    std::copy(values.begin(), values.end(), static_cast<float*>(pinned));
    (void)gpu_->CopyAsync(kernels::DeviceAccess::Data(to), pinned, bytes, current_);
  }
  // At once, whatever the streams do.
  std::vector<float> Peek(DeviceBuffer from) const {
    const float* data = kernels::DeviceAccess::Floats(from);
    return std::vector<float>(data, data + from.size());
  }
  // The next recording of an event fails.
  void FailNextEvent(absl::Status error) { event_error_ = std::move(error); }

  std::string_view name() const override { return "opless"; }
  kernels::ElementType activation_type() const override { return kernels::ElementType::kFloat32; }
  int64_t WorkingElements() const override { return 1; }
  kernels::MemoryStats memory() const override { return {}; }
  void ResetPeakMemory() override {}
  absl::StatusOr<float*> MapHost(DeviceBuffer buffer) override {
    return absl::UnimplementedError("device memory");
  }
  absl::StatusOr<kernels::NativeBuffer> Native(DeviceBuffer buffer) override {
    return kernels::NativeBuffer{kernels::DeviceAccess::Floats(buffer), current_};
  }
  absl::StatusOr<std::unique_ptr<kernels::Stream>> CreateStream() override {
    auto stream = std::make_unique<GpuStream>();
    (void)gpu_->CreateStream(&stream->handle);
    return std::unique_ptr<kernels::Stream>(std::move(stream));
  }
  absl::Status SetStream(kernels::Stream* stream) override {
    current_ = stream == nullptr ? default_ : static_cast<GpuStream*>(stream)->handle;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<kernels::Event>> RecordEvent() override {
    if (!event_error_.ok()) return std::exchange(event_error_, absl::OkStatus());
    auto event = std::make_unique<GpuEvent>(gpu_);
    (void)gpu_->RecordEvent(event->handle, current_);
    return std::unique_ptr<kernels::Event>(std::move(event));
  }
  absl::Status WaitEvent(const kernels::Event& event) override {
    (void)gpu_->StreamWaitEvent(current_, static_cast<const GpuEvent&>(event).handle);
    return absl::OkStatus();
  }
  absl::Status Synchronize() override {
    GpuEvent event(gpu_);
    (void)gpu_->RecordEvent(event.handle, current_);
    for (bool done = false; !done; gpu_->Pause(0)) (void)gpu_->QueryEvent(event.handle, &done);
    return absl::OkStatus();
  }

  absl::Status Fill(DeviceBuffer buffer, float value) override { return None(); }
  absl::Status FillZero(DeviceSpan<double> buffer) override { return None(); }
  int64_t AllocatedBytes(int64_t bytes) const override { return 0; }
  int64_t AttentionForwardScratch(const kernels::AttentionShape& shape,
                                  const kernels::PackedBlocks& blocks,
                                  int64_t pairs) const override {
    return 0;
  }
  int64_t AttentionBackwardScratch(const kernels::AttentionShape& shape,
                                   const kernels::PackedBlocks& blocks,
                                   int64_t pairs) const override {
    return 0;
  }
  int64_t MatmulScratch(const kernels::MatmulShape& shape) const override { return 0; }
  absl::StatusOr<kernels::EventInterval> Elapsed(const kernels::Event& from,
                                                 const kernels::Event& to) override {
    return None();
  }
  absl::Status EmbeddingForward(int64_t columns, DeviceSpan<const int32_t> ids,
                                ConstDeviceBuffer table, DeviceBuffer out) override {
    return None();
  }
  absl::Status EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                 ConstDeviceBuffer out_grad, DeviceBuffer table_grad) override {
    return None();
  }
  absl::Status Matmul(const kernels::MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                      ConstDeviceBuffer bias, DeviceBuffer c) override {
    return None();
  }
  absl::Status AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                             DeviceBuffer out) override {
    return None();
  }
  absl::Status RmsNormForward(const kernels::NormShape& shape, ConstDeviceBuffer x,
                              ConstDeviceBuffer weight, DeviceBuffer y,
                              DeviceBuffer inverse_rms) override {
    return None();
  }
  absl::Status RmsNormBackward(const kernels::NormShape& shape, ConstDeviceBuffer x,
                               ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                               ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                               DeviceBuffer weight_grad) override {
    return None();
  }
  absl::Status RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                         DeviceBuffer table) override {
    return None();
  }
  absl::Status Rope(const kernels::RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                    DeviceBuffer x) override {
    return None();
  }
  absl::Status SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                             DeviceBuffer out) override {
    return None();
  }
  absl::Status SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                              ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) override {
    return None();
  }
  absl::Status Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) override {
    return None();
  }
  absl::Status Scale(float factor, DeviceBuffer x) override { return None(); }
  absl::Status Dropout(const kernels::DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                       ConstDeviceBuffer x, DeviceBuffer y) override {
    return None();
  }
  absl::Status CrossEntropy(const kernels::CrossEntropyShape& shape, ConstDeviceBuffer logits,
                            DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                            DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) override {
    return None();
  }
  absl::Status AdamW(const kernels::AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                     DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy) override {
    return None();
  }
  absl::Status AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) override {
    return None();
  }
  absl::StatusOr<std::unique_ptr<kernels::AttentionLayout>> CreateLayout(
      kernels::PackedBlocks blocks) override {
    return None();
  }
  absl::Status BlockMeans(const kernels::AttentionShape& shape,
                          const kernels::AttentionLayout& layout, ConstDeviceBuffer k,
                          DeviceBuffer means) override {
    return None();
  }
  absl::StatusOr<std::vector<std::vector<double>>> CoverageCurves(
      const kernels::AttentionShape& shape, const kernels::AttentionLayout& layout,
      ConstDeviceBuffer q, ConstDeviceBuffer means, int sample_stride) override {
    return None();
  }
  absl::StatusOr<kernels::BlockLists> SelectBlocks(const kernels::AttentionShape& shape,
                                                   const kernels::AttentionLayout& layout,
                                                   ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                   const std::vector<int32_t>& budgets) override {
    return None();
  }
  absl::Status BuildBlockLists(const kernels::AttentionShape& shape,
                               const kernels::AttentionLayout& layout,
                               kernels::BlockLists* lists) override {
    return None();
  }
  absl::StatusOr<std::vector<double>> AttentionMass(const kernels::AttentionShape& shape,
                                                    const kernels::AttentionLayout& layout,
                                                    const kernels::BlockLists& lists,
                                                    ConstDeviceBuffer q, ConstDeviceBuffer k,
                                                    int queries) override {
    return None();
  }
  absl::Status AttentionForward(const kernels::AttentionShape& shape,
                                const kernels::AttentionLayout& layout,
                                const kernels::BlockLists& lists, ConstDeviceBuffer q,
                                ConstDeviceBuffer k, ConstDeviceBuffer v, DeviceBuffer out,
                                DeviceBuffer lse) override {
    return None();
  }
  absl::Status AttentionBackward(const kernels::AttentionShape& shape,
                                 const kernels::AttentionLayout& layout,
                                 const kernels::BlockLists& lists, ConstDeviceBuffer q,
                                 ConstDeviceBuffer k, ConstDeviceBuffer v, ConstDeviceBuffer out,
                                 ConstDeviceBuffer lse, ConstDeviceBuffer out_grad,
                                 DeviceBuffer q_grad, DeviceBuffer k_grad,
                                 DeviceBuffer v_grad) override {
    return None();
  }

 private:
  struct GpuStream final : kernels::Stream {
    void* handle = nullptr;
  };
  struct GpuEvent final : kernels::Event {
    explicit GpuEvent(Gpu* on) : gpu(on) { (void)gpu->CreateEvent(&handle); }
    ~GpuEvent() override { (void)gpu->DestroyEvent(handle); }
    Gpu* const gpu;
    void* handle = nullptr;
  };

  static absl::Status None() { return absl::UnimplementedError("this device has no ops"); }

  absl::StatusOr<void*> AllocateBytes(int64_t bytes, kernels::MemoryPurpose purpose) override {
    void* data = nullptr;
    (void)gpu_->AllocateDevice(&data, static_cast<size_t>(bytes));
    return data;
  }
  // Waits for what runs, as cudaFree does.
  void FreeBytes(void* data, int64_t bytes) override {
    (void)Synchronize();
    (void)gpu_->FreeDevice(data);
  }
  absl::Status CopyBytes(const void* from, void* to, int64_t bytes,
                         kernels::CopyKind kind) override {
    absl::Status status = Synchronize();
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return status;
  }

  absl::Status Convert(ConstDeviceBuffer from, DeviceBuffer to) override { return None(); }

  Gpu* const gpu_;
  void* default_ = nullptr;
  void* current_ = nullptr;
  absl::Status event_error_;
};

}  // namespace sparsebalance::train_testing
