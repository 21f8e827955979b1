#include "kernels/cuda/backend/emulated_platform.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/backend/dispatch.h"
#include "kernels/cuda/backend/platform.h"
#include "kernels/host_event.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Device;

class EmulatedStream final : public Stream {};

class EmulatedPlatform final : public Platform {
 public:
  explicit EmulatedPlatform(const emulation::DeviceOptions& options)
      : device_(options),
        facts_{.name = "emulated GPU",
               .memory_bytes = options.memory_limit_bytes,
               .shared_bytes = options.limits.shared_bytes,
               // Few, so that tests of small models come to several pieces.
               .working_elements = 1 << 12} {}

  const DeviceFacts& facts() const override { return facts_; }
  absl::Status Activate() override { return absl::OkStatus(); }
  void* NativeStream() override { return &device_; }

  absl::StatusOr<void*> Allocate(int64_t bytes, MemoryPurpose purpose) override {
    SB_ASSIGN_OR_RETURN(
        const DevicePtr<std::byte> data,
        device_.Allocate<std::byte>(bytes, purpose == MemoryPurpose::kState ? "state" : "step"));
    return Device::Address(data);
  }

  void Free(void* data) override {
    const absl::StatusOr<DevicePtr<std::byte>> found = device_.Find(static_cast<std::byte*>(data));
    // What the backend frees is what it was given.
    if (found.ok()) device_.Free(*found).IgnoreError();
  }

  absl::Status Copy(const void* from, void* to, int64_t bytes, CopyKind kind) override {
    if (kind != CopyKind::kToHost) SB_RETURN_IF_ERROR(CheckLive(to, bytes));
    if (kind != CopyKind::kToDevice) SB_RETURN_IF_ERROR(CheckLive(from, bytes));
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  absl::Status Fill(void* data, uint8_t value, int64_t bytes) override {
    SB_RETURN_IF_ERROR(CheckLive(data, bytes));
    std::memset(data, value, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::unique_ptr<Stream>(std::make_unique<EmulatedStream>());
  }
  absl::Status SetStream(Stream* /*stream*/) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Event>> RecordEvent() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }
  absl::Status WaitEvent(const Event& /*event*/) override { return absl::OkStatus(); }
  absl::StatusOr<EventInterval> Elapsed(const Event& from, const Event& to) override {
    return HostEvent::Between(from, to);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  absl::Status Matmul(const MatmulShape& s, const MatmulOperands& o) override {
    SB_RETURN_IF_ERROR(CheckLive(o.a, ElementBytes(o.input_type)));
    SB_RETURN_IF_ERROR(CheckLive(o.b, ElementBytes(o.input_type)));
    SB_RETURN_IF_ERROR(CheckLive(o.c, ElementBytes(o.output_type)));
    Dispatch(o.input_type, [&]<typename In>(In) {
      Dispatch(o.output_type,
               [&]<typename Out>(Out) { Product<typename In::Type, typename Out::Type>(s, o); });
    });
    return absl::OkStatus();
  }

 private:
  // Sums in float, by ascending k, rounded once.
  template <typename In, typename Out>
  static void Product(const MatmulShape& s, const MatmulOperands& o) {
    const auto* a = static_cast<const In*>(o.a);
    const auto* b = static_cast<const In*>(o.b);
    const auto* bias = static_cast<const Out*>(o.bias);
    auto* c = static_cast<Out*>(o.c);
    const auto row = [](bool transposed, int64_t stride) { return transposed ? 1 : stride; };
    const auto column = [](bool transposed, int64_t stride) { return transposed ? stride : 1; };
    std::vector<float> sums(static_cast<size_t>(s.n));
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t j = 0; j < s.n; ++j) {
        sums[j] = bias == nullptr ? 0.0F : static_cast<float>(bias[j]);
        if (s.accumulate) sums[j] += static_cast<float>(c[i * s.c_stride + j]);
      }
      for (int64_t k = 0; k < s.k; ++k) {
        const auto left = static_cast<float>(
            a[i * row(s.transpose_a, s.a_stride) + k * column(s.transpose_a, s.a_stride)]);
        const In* line = b + k * row(s.transpose_b, s.b_stride);
        const int64_t step = column(s.transpose_b, s.b_stride);
        for (int64_t j = 0; j < s.n; ++j) sums[j] += left * static_cast<float>(line[j * step]);
      }
      for (int64_t j = 0; j < s.n; ++j) c[i * s.c_stride + j] = Out(sums[j]);
    }
  }

  absl::Status CheckLive(const void* data, int64_t bytes) {
    SB_ASSIGN_OR_RETURN(const DevicePtr<const std::byte> found,
                        device_.Find(static_cast<const std::byte*>(data)));
    if (found.offset() + static_cast<uint64_t>(bytes) <= found.region()->bytes) {
      return absl::OkStatus();
    }
    return absl::OutOfRangeError(absl::StrCat(bytes, " bytes at byte ", found.offset(), " of '",
                                              found.region()->name, "', which has ",
                                              found.region()->bytes));
  }

  Device device_;
  const DeviceFacts facts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateEmulatedBackend(
    const BackendOptions& options, const emulation::DeviceOptions& device) {
  return CudaBackend::Create(std::make_unique<EmulatedPlatform>(device), options);
}

}  // namespace sparsebalance::kernels::cuda
