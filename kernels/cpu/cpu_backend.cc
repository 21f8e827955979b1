#include "kernels/cpu/cpu_backend.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/host_event.h"

namespace sparsebalance::kernels::cpu {
namespace {

class CpuStream final : public Stream {};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CpuBackend::Create(const BackendOptions& options) {
  if (absl::Status status = CheckCpuFeatures(kCompiledFeatures, MachineFeatures()); !status.ok()) {
    return status;
  }
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a CPU backend of ", options.threads, " threads; give it at least 1"));
  }
  if (options.activation_type != ElementType::kFloat32) {
    return absl::InvalidArgumentError(
        "the CPU backend computes in fp32; bf16 needs the CUDA backend");
  }
  try {
    return std::unique_ptr<Backend>(new CpuBackend(options));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("oneDNN has no CPU engine here: ", e.what()));
  }
}

CpuBackend::CpuBackend(const BackendOptions& options)
    : threads_(options.threads),
      pool_(options.poison_allocations, options.memory_limit_bytes),
      matmul_(options.threads) {}

absl::Status CpuBackend::Fill(DeviceBuffer buffer, float value) {
  cpu::Fill(threads_, buffer.size(), value, DeviceAccess::Floats(buffer));
  return absl::OkStatus();
}

absl::Status CpuBackend::FillZero(DeviceSpan<double> buffer) {
  double* data = DeviceAccess::Data(buffer);
  for (int64_t i = 0; i < buffer.size(); ++i) data[i] = 0;
  return absl::OkStatus();
}

absl::StatusOr<float*> CpuBackend::MapHost(DeviceBuffer buffer) {
  return DeviceAccess::Floats(buffer);
}

absl::StatusOr<NativeBuffer> CpuBackend::Native(DeviceBuffer buffer) {
  return absl::UnimplementedError(
      "the CPU backend has no device memory; MapHost gives the host's address");
}

absl::StatusOr<std::unique_ptr<Stream>> CpuBackend::CreateStream() {
  return std::unique_ptr<Stream>(std::make_unique<CpuStream>());
}

absl::Status CpuBackend::SetStream(Stream* stream) { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Event>> CpuBackend::RecordEvent() {
  return std::unique_ptr<Event>(std::make_unique<HostEvent>());
}

absl::Status CpuBackend::WaitEvent(const Event& event) { return absl::OkStatus(); }

absl::StatusOr<EventInterval> CpuBackend::Elapsed(const Event& from, const Event& to) {
  return HostEvent::Between(from, to);
}

absl::Status CpuBackend::Synchronize() { return absl::OkStatus(); }

absl::StatusOr<void*> CpuBackend::AllocateBytes(int64_t bytes, MemoryPurpose purpose) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("an allocation of ", bytes, " bytes"));
  }
  void* data = pool_.Allocate(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no host memory for ", bytes, " bytes on top of ", pool_.stats().live_bytes, " in use",
        pool_.limited() ? absl::StrCat(", within the limit of ", pool_.limit(), " bytes") : "",
        "; lower the tokens per micro-batch"));
  }
  return data;
}

void CpuBackend::FreeBytes(void* data, int64_t bytes) { pool_.Free(data); }

absl::Status CpuBackend::CopyBytes(const void* from, void* to, int64_t bytes, CopyKind kind) {
  if (bytes > 0) Copy(threads_, bytes, from, to);
  return absl::OkStatus();
}

absl::Status CpuBackend::Convert(ConstDeviceBuffer from, DeviceBuffer to) {
  return absl::UnimplementedError("the CPU backend has buffers of fp32 alone");
}

}  // namespace sparsebalance::kernels::cpu
