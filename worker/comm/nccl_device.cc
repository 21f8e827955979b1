#include "worker/comm/nccl_device.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/comm/gpu_result.h"

namespace sparsebalance::comm_internal {

NcclDevice::NcclDevice(std::shared_ptr<NcclApi> api, const NcclDeviceOptions& options,
                       const std::atomic<bool>* stop)
    : api_(std::move(api)), options_(options), stop_(stop) {}

// Nobody is left to be told of errors here, and each of them leaves no more to do than before.
NcclDevice::~NcclDevice() {
  (void)api_->SetDevice(options_.device);
  Leave();
  if (!Drain()) return;
  FreeStaging(headers_);
  FreeStaging(slots_);
  for (void* event : slot_events_) {
    if (event != nullptr) (void)api_->DestroyEvent(event);
  }
  if (tail_event_ != nullptr) (void)api_->DestroyEvent(tail_event_);
  if (stream_ != nullptr) (void)api_->DestroyStream(stream_);
}

Staging NcclDevice::slot(int slot) const {
  const size_t offset = slot * options_.staging_bytes;
  return {slots_.pinned + offset, slots_.device + offset};
}

absl::Status NcclDevice::MakeCurrent() {
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->SetDevice(options_.device));
  return absl::OkStatus();
}

absl::Status NcclDevice::AllocateStaging(size_t bytes, Staging& staging) {
  void* pinned = nullptr;
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->AllocatePinned(&pinned, bytes));
  staging.pinned = static_cast<std::byte*>(pinned);
  void* device = nullptr;
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->AllocateDevice(&device, bytes));
  staging.device = static_cast<std::byte*>(device);
  return absl::OkStatus();
}

void NcclDevice::FreeStaging(Staging& staging) {
  if (staging.pinned != nullptr) (void)api_->FreePinned(staging.pinned);
  if (staging.device != nullptr) (void)api_->FreeDevice(staging.device);
  staging = {};
}

absl::Status NcclDevice::Allocate(size_t header_bytes) {
  absl::Status status = MakeCurrent();
  if (!status.ok()) return status;
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->CreateStream(&stream_));
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->CreateEvent(&tail_event_));
  for (void*& event : slot_events_) {
    SB_GPU_RETURN_IF_ERROR(options_.device, api_->CreateEvent(&event));
  }
  status = AllocateStaging(header_bytes * options_.size, headers_);
  if (!status.ok()) return status;
  return AllocateStaging(options_.staging_bytes * kSlots, slots_);
}

absl::Status NcclDevice::Join(const NcclId& id) {
  // The exchange of blobs, which is the caller's, came between.
  absl::Status status = MakeCurrent();
  if (!status.ok()) return status;
  const GpuResult result = api_->Join(&comm_, options_.size, id, options_.rank);
  status = Settle(result, "ncclCommInitRankConfig", __FILE__, __LINE__);
  if (!status.ok()) Abort();
  return status;
}

absl::Status NcclDevice::Poll(absl::Duration timeout, bool heed_stop,
                              absl::FunctionRef<absl::StatusOr<bool>()> done) {
  const absl::Time deadline = api_->Now() + timeout;
  for (int poll = 0;; ++poll) {
    if (heed_stop && stop_->load()) return absl::CancelledError("aborted by this rank");
    const absl::StatusOr<bool> is_done = done();
    if (!is_done.ok()) return is_done.status();
    if (*is_done) return absl::OkStatus();
    if (api_->Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          "no end within ", absl::FormatDuration(timeout),
          ": a peer was lost, hangs, or called another collective; NCCL does not say which"));
    }
    api_->Pause(poll);
  }
}

absl::StatusOr<bool> NcclDevice::Ready() {
  GpuResult state;
  SB_GPU_RETURN_IF_ERROR(options_.device, api_->AsyncError(comm_, &state));
  if (state.ok()) return true;
  if (state.code == kNcclInProgress) return false;
  return Explain(GpuError(state, options_.device, "ncclCommGetAsyncError", __FILE__, __LINE__));
}

// What NCCL knows beyond the code, and for a lost peer what it does not.
absl::Status NcclDevice::Explain(absl::Status status) const {
  std::string text(status.message());
  if (comm_ != nullptr) {
    const std::string last = api_->LastError(comm_);
    if (!last.empty()) absl::StrAppend(&text, " (", last, ")");
  }
  if (absl::IsUnavailable(status)) {
    absl::StrAppend(&text, "; a peer was lost or the network failed, NCCL does not say which");
  }
  return absl::Status(status.code(), text);
}

absl::Status NcclDevice::Settle(const GpuResult& result, const char* call, const char* file,
                                int line) {
  if (result.ok()) return absl::OkStatus();
  if (result.code != kNcclInProgress) {
    return Explain(GpuError(result, options_.device, call, file, line));
  }
  return Poll(options_.timeout, /*heed_stop=*/true, [this] { return Ready(); });
}

absl::Status NcclDevice::CheckAsync() {
  const absl::StatusOr<bool> ready = Ready();
  return ready.status();
}

absl::Status NcclDevice::Await(void* event) {
  return Poll(options_.timeout, /*heed_stop=*/true, [&]() -> absl::StatusOr<bool> {
    bool done = false;
    SB_GPU_RETURN_IF_ERROR(options_.device, api_->QueryEvent(event, &done));
    // Also where it is done: what stopped a collective can be known to NCCL alone.
    const absl::StatusOr<bool> ready = Ready();
    if (!ready.ok()) return ready.status();
    return done;
  });
}

void NcclDevice::Abort() {
  if (comm_ == nullptr) return;
  (void)api_->SetDevice(options_.device);
  (void)api_->Abort(std::exchange(comm_, nullptr));
}

void NcclDevice::Leave() {
  if (comm_ == nullptr) return;
  const GpuResult result = api_->Finalize(comm_);
  const bool flushed =
      result.ok() ||
      (result.code == kNcclInProgress &&
       Poll(options_.leave_timeout, /*heed_stop=*/true, [this] { return Ready(); }).ok());
  if (!flushed) return Abort();
  (void)api_->Destroy(std::exchange(comm_, nullptr));
}

// Whether the stream has let go of the memory.
bool NcclDevice::Drain() {
  void* const last = slot_events_[0];
  if (stream_ == nullptr || last == nullptr) return true;
  if (!api_->RecordEvent(last, stream_).ok()) return true;
  const absl::Status status =
      Poll(options_.leave_timeout, /*heed_stop=*/false, [&]() -> absl::StatusOr<bool> {
        bool done = false;
        // A device that fails runs nothing any more.
        const GpuResult query = api_->QueryEvent(last, &done);
        return done || !query.ok();
      });
  return status.ok();
}

}  // namespace sparsebalance::comm_internal
