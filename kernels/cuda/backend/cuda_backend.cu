#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/dense/elementwise.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// What arenas hand out is a multiple of this.
constexpr int64_t kGranularity = 512;

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(std::unique_ptr<Platform> platform,
                                                             const BackendOptions& options) {
  std::unique_ptr<CudaBackend> out(new CudaBackend(std::move(platform), options));
  SB_ASSIGN_OR_RETURN(out->bad_ids_, out->Allocate<int32_t>(1, MemoryPurpose::kState));
  SB_RETURN_IF_ERROR(
      out->platform_->Fill(DeviceAccess::Data(out->bad_ids_.span()), 0, sizeof(int32_t)));
  return std::unique_ptr<Backend>(std::move(out));
}

CudaBackend::~CudaBackend() { bad_ids_ = {}; }

absl::StatusOr<StreamHandle> CudaBackend::ActivateStream() {
  SB_RETURN_IF_ERROR(platform_->Activate());
  return static_cast<StreamHandle>(platform_->NativeStream());
}

// --- memory -------------------------------------------------------------------------------------

int64_t CudaBackend::AllocatedBytes(int64_t bytes) const {
  return std::max(kGranularity, (bytes + kGranularity - 1) / kGranularity * kGranularity);
}

absl::StatusOr<void*> CudaBackend::AllocateBytes(int64_t bytes, MemoryPurpose purpose) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("an allocation of ", bytes, " bytes"));
  }
  const int64_t taken = AllocatedBytes(bytes);
  const int64_t limit = options_.memory_limit_bytes;
  if (limit > 0 && taken > limit - stats_.live_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no device memory for ", bytes, " bytes on top of ", stats_.live_bytes,
        " in use, within the limit of ", limit, " bytes; lower the tokens per micro-batch"));
  }
  // The size that was asked for, so that the emulation finds accesses behind it.
  SB_ASSIGN_OR_RETURN(void* data, platform_->Allocate(bytes, purpose));
  stats_.live_bytes += taken;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  if (options_.poison_allocations && bytes > 0) {
    const absl::Status status = platform_->Fill(data, 0xFF, bytes);
    if (!status.ok()) {
      FreeBytes(data, bytes);
      return status;
    }
  }
  return data;
}

void CudaBackend::FreeBytes(void* data, int64_t bytes) {
  stats_.live_bytes -= AllocatedBytes(bytes);
  platform_->Free(data);
}

absl::Status CudaBackend::CopyBytes(const void* from, void* to, int64_t bytes, CopyKind kind) {
  if (bytes > 0) SB_RETURN_IF_ERROR(platform_->Copy(from, to, bytes, kind));
  return kind == CopyKind::kToHost ? CheckIds() : absl::OkStatus();
}

absl::Status CudaBackend::CheckIds() {
  if (!ids_unchecked_) return absl::OkStatus();
  ids_unchecked_ = false;
  int32_t* const counter = DeviceAccess::Data(bad_ids_.span());
  int32_t count = 0;
  SB_RETURN_IF_ERROR(platform_->Copy(counter, &count, sizeof(count), CopyKind::kToHost));
  if (count == 0) return absl::OkStatus();
  SB_RETURN_IF_ERROR(platform_->Fill(counter, 0, sizeof(count)));
  return absl::InvalidArgumentError(
      absl::StrCat(count,
                   " ids or targets since the device was last waited for lie outside of "
                   "their table; check the token ids against the vocabulary"));
}

absl::Status CudaBackend::Fill(DeviceBuffer buffer, float value) {
  if (buffer.empty()) return absl::OkStatus();
  if (value == 0.0F) {
    return platform_->Fill(DeviceAccess::Data(buffer), 0,
                           buffer.size() * ElementBytes(buffer.type()));
  }
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return buffer.type() == ElementType::kFloat32
             ? LaunchFill<float>(stream, buffer.size(), value, At<float>(buffer))
             : LaunchFill<Bf16>(stream, buffer.size(), value, At<Bf16>(buffer));
}

absl::Status CudaBackend::FillZero(DeviceSpan<double> buffer) {
  if (buffer.empty()) return absl::OkStatus();
  return platform_->Fill(DeviceAccess::Data(buffer), 0,
                         buffer.size() * static_cast<int64_t>(sizeof(double)));
}

absl::StatusOr<float*> CudaBackend::MapHost(DeviceBuffer /*buffer*/) {
  return absl::UnimplementedError("the host cannot reach device memory; copy");
}

absl::StatusOr<NativeBuffer> CudaBackend::Native(DeviceBuffer buffer) {
  if (buffer.type() != ElementType::kFloat32) {
    return absl::InvalidArgumentError("Native: communicators take float32");
  }
  return NativeBuffer{DeviceAccess::Floats(buffer), platform_->NativeStream()};
}

absl::Status CudaBackend::Convert(ConstDeviceBuffer from, DeviceBuffer to) {
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  if (to.type() == ElementType::kFloat32) {
    return LaunchConvert<Bf16, float>(stream, from.size(), At<Bf16>(from), At<float>(to));
  }
  return LaunchConvert<float, Bf16>(stream, from.size(), At<float>(from), At<Bf16>(to));
}

// --- order and time -----------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<Stream>> CudaBackend::CreateStream() {
  return platform_->CreateStream();
}

absl::Status CudaBackend::SetStream(Stream* stream) { return platform_->SetStream(stream); }

absl::StatusOr<std::unique_ptr<Event>> CudaBackend::RecordEvent() {
  return platform_->RecordEvent();
}

absl::Status CudaBackend::WaitEvent(const Event& event) { return platform_->WaitEvent(event); }

absl::StatusOr<EventInterval> CudaBackend::Elapsed(const Event& from, const Event& to) {
  return platform_->Elapsed(from, to);
}

absl::Status CudaBackend::Synchronize() {
  SB_RETURN_IF_ERROR(platform_->Synchronize());
  return CheckIds();
}

}  // namespace sparsebalance::kernels::cuda
