// The calls of the CUDA runtime and of NCCL that NcclCommunicator makes, and nothing of theirs in
// the signatures: so everything but the thin wrapper of the libraries (nccl_api_system.cc) builds
// and is tested without CUDA, against a fake that moves real data between threads.
//
// Streams and events are the libraries' handles. Unless it says otherwise a call means what the
// function of the library that its comment names means.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/gpu_result.h"

namespace sparsebalance {

// Codes of NCCL that need an answer of their own.
inline constexpr int kNcclSystemError = 2;
inline constexpr int kNcclRemoteError = 6;
inline constexpr int kNcclInProgress = 7;

enum class NcclType { kFloat, kDouble, kInt64 };
enum class NcclReduction { kSum, kMax, kMin };

// What rank 0 makes and every rank joins by.
using NcclId = std::array<char, 128>;

class NcclApi {
 public:
  virtual ~NcclApi() = default;
  NcclApi(const NcclApi&) = delete;
  NcclApi& operator=(const NcclApi&) = delete;

  // --- CUDA runtime -----------------------------------------------------------------------------
  virtual GpuResult DeviceCount(int* count) = 0;                     // cudaGetDeviceCount
  virtual GpuResult SetDevice(int device) = 0;                       // of the calling thread
  virtual GpuResult AllocateDevice(void** data, size_t bytes) = 0;   // cudaMalloc
  virtual GpuResult FreeDevice(void* data) = 0;                      // cudaFree
  virtual GpuResult AllocatePinned(void** data, size_t bytes) = 0;   // cudaHostAlloc
  virtual GpuResult FreePinned(void* data) = 0;                      // cudaFreeHost
  virtual GpuResult CreateStream(void** stream) = 0;                 // non-blocking stream
  virtual GpuResult DestroyStream(void* stream) = 0;                 // does not wait
  virtual GpuResult CreateEvent(void** event) = 0;                   // without timing
  virtual GpuResult DestroyEvent(void* event) = 0;                   // does not wait
  virtual GpuResult RecordEvent(void* event, void* stream) = 0;      // cudaEventRecord
  virtual GpuResult QueryEvent(void* event, bool* done) = 0;         // not ready: done = false
  virtual GpuResult StreamWaitEvent(void* stream, void* event) = 0;  // cudaStreamWaitEvent
  virtual GpuResult CopyAsync(void* to, const void* from, size_t bytes, void* stream) = 0;

  // --- NCCL -------------------------------------------------------------------------------------
  // Communicators are made non-blocking: each call may return kNcclInProgress; it has taken effect,
  // its work being on the stream, once AsyncError() gives another code.
  virtual GpuResult Version(int* version) = 0;  // 22809 is 2.28.9
  virtual GpuResult UniqueId(NcclId* id) = 0;
  virtual GpuResult Join(void** comm, int size, const NcclId& id, int rank) = 0;
  // The state of the communicator goes to `state`.
  virtual GpuResult AsyncError(void* comm, GpuResult* state) = 0;
  // In place, on `count` elements.
  virtual GpuResult AllReduce(void* data, size_t count, NcclType type, NcclReduction reduction,
                              void* comm, void* stream) = 0;
  // `data` holds `count` elements a rank, this rank's own at its place.
  virtual GpuResult AllGather(void* data, size_t count, NcclType type, int rank, void* comm,
                              void* stream) = 0;
  virtual GpuResult Broadcast(void* data, size_t count, NcclType type, int root, void* comm,
                              void* stream) = 0;
  virtual GpuResult Finalize(void* comm) = 0;  // flushes; then Destroy() does not block
  virtual GpuResult Destroy(void* comm) = 0;
  virtual GpuResult Abort(void* comm) = 0;              // stops what runs and frees `comm`
  virtual std::string LastError(void* comm) const = 0;  // NCCL's words on its last error, or empty

  // --- time -------------------------------------------------------------------------------------
  virtual absl::Time Now() = 0;
  // Lets others run between two polls, the `poll`-th of a wait from 0: short at first.
  virtual void Pause(int poll) = 0;

 protected:
  NcclApi() = default;
};

// The libraries of this machine. UNIMPLEMENTED in a build without CUDA and NCCL. (Library
// sb_nccl_system.)
absl::StatusOr<std::shared_ptr<NcclApi>> SystemNcclApi();

}  // namespace sparsebalance
