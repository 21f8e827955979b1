// One rank's end of an NCCL communicator: the handle, a stream, events and the memory that values
// from the host pass through, and waits that always end. Knows nothing of collectives' order.
//
// Nothing here waits for the GPU other than by polling, with a look at three things in each round:
// is it done, has NCCL found an error, has somebody asked to stop; and at a deadline. A plain
// cudaStreamSynchronize would never return from behind a peer that is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/nccl_api.h"

namespace sparsebalance::comm_internal {

// Pinned host memory and device memory of the same size, for values on their way.
struct Staging {
  std::byte* pinned = nullptr;
  std::byte* device = nullptr;
};

struct NcclDeviceOptions {
  int device = 0;
  int rank = 0;
  int size = 1;
  absl::Duration timeout;
  absl::Duration leave_timeout;
  size_t staging_bytes = 0;  // of each of the two slots
};

// Used by one thread at a time, all but `stop`.
class NcclDevice {
 public:
  static constexpr int kSlots = 2;

  // `stop` outlives it; every wait ends with CANCELLED once it is true.
  NcclDevice(std::shared_ptr<NcclApi> api, const NcclDeviceOptions& options,
             const std::atomic<bool>* stop);
  // Leaves in peace where it can within `leave_timeout`, else aborts. Memory that the GPU still
  // does not let go of after that long again is left allocated: freeing it would wait without end.
  ~NcclDevice();
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  NcclApi& api() const { return *api_; }
  int device() const { return options_.device; }
  void* comm() const { return comm_; }  // null before Join() and after Abort()
  void* stream() const { return stream_; }
  // Recorded after the last collective on a caller's device buffer.
  void* tail_event() const { return tail_event_; }
  void* slot_event(int slot) const { return slot_events_[slot]; }
  Staging slot(int slot) const;
  // Of header_bytes a rank.
  Staging headers() const { return headers_; }

  // Everything below leaves this device current for the calling thread, as it must be for each.
  absl::Status MakeCurrent();

  // Stream, events and memory. `header_bytes` for every rank.
  absl::Status Allocate(size_t header_bytes);
  // Returns once all ranks have joined by `id`. UNAVAILABLE after the timeout.
  absl::Status Join(const NcclId& id);

  // Returns once a call of NCCL has taken effect; the library's error where it failed.
  absl::Status Settle(const GpuResult& result, const char* call, const char* file, int line);
  // The error that NCCL has found since, OK where there is none.
  absl::Status CheckAsync();
  // Returns once `event` has happened.
  absl::Status Await(void* event);

  // Stops what runs on the device and gives the communicator up. Idempotent.
  void Abort();

 private:
  // Until `done` says true or an error. `heed_stop`: whether `stop` ends it.
  absl::Status Poll(absl::Duration timeout, bool heed_stop,
                    absl::FunctionRef<absl::StatusOr<bool>()> done);
  // False while a call is in progress; the error where there is one.
  absl::StatusOr<bool> Ready();
  absl::Status Explain(absl::Status status) const;
  void Leave();
  bool Drain();
  absl::Status AllocateStaging(size_t bytes, Staging& staging);
  void FreeStaging(Staging& staging);

  const std::shared_ptr<NcclApi> api_;
  const NcclDeviceOptions options_;
  const std::atomic<bool>* const stop_;
  void* comm_ = nullptr;
  void* stream_ = nullptr;
  void* tail_event_ = nullptr;
  std::array<void*, kSlots> slot_events_ = {};
  Staging headers_;
  Staging slots_;
};

}  // namespace sparsebalance::comm_internal

// Returns from the enclosing function where `call`, a call of NCCL on `nccl_device`, fails; waits
// until it has taken effect.
#define SB_NCCL_RETURN_IF_ERROR(nccl_device, call)                                         \
  do {                                                                                     \
    if (absl::Status sb_status_ = (nccl_device).Settle((call), #call, __FILE__, __LINE__); \
        !sb_status_.ok()) {                                                                \
      return sb_status_;                                                                   \
    }                                                                                      \
  } while (false)
