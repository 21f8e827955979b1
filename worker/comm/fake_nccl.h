// NCCL and the CUDA runtime as far as NcclCommunicator uses them, with threads for streams and host
// memory for a GPU's: collectives move real values between ranks of one process, asynchronously,
// and fail where a test says so. For tests.
//
//   FakeNcclNode node;
//   auto ranks = ConnectFakeNccl(node, 4, {});
//   node.gpu(2).FailCall("AllReduce", 3, {"NCCL", 6, "remote process exited"});
//
// As strict as the libraries, or more so:
//  * Every call of NCCL is in progress until AsyncError() has been asked twice. Only then is its
//    work on the stream: an event that is recorded earlier does not cover it.
//  * Copies and collectives refuse memory that is not pinned or not on the device.
//  * A collective of ranks that disagree, or of a rank whose peer is gone, does not end until its
//    own communicator is aborted; that a peer is gone is an asynchronous error.
//  * Sums are added in an order that differs by element and is not that of ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/nccl_communicator.h"

namespace sparsebalance::comm_testing {

class FakeGroup;
class FakeStream;
struct FakeComm;
class FakeEvent;

// One rank's GPU and libraries. The thread of the rank and a test's may both use it.
class FakeGpu final : public NcclApi {
 public:
  FakeGpu();
  ~FakeGpu() override;

  // The `nth` call from now (from 1) of the function of this name returns `result`.
  void FailCall(const std::string& function, int nth, const GpuResult& result);
  // What the communicator has found, from now on.
  void SetAsyncError(const GpuResult& state);
  void SetDeviceCount(int count, const GpuResult& result);
  // What is put on the stream from now on stays there until Release().
  void Hold(void* stream);
  // Abort() does not end what is on the device, until Release().
  void IgnoreAborts();
  void Release();
  // Time passes with pauses only, and while every stream is idle or waits for what is not there: so
  // a timeout of minutes is over at once, and none is that is not due.
  void UseVirtualTime();
  // Where not empty, Pause() of a call that waits gets here first.
  void OnPause(std::function<void()> hook);
  void SetVersion(int version);

  int calls(const std::string& function) const;
  int live_allocations() const;  // device and pinned memory

  GpuResult DeviceCount(int* count) override;
  GpuResult SetDevice(int device) override;
  GpuResult AllocateDevice(void** data, size_t bytes) override;
  GpuResult FreeDevice(void* data) override;
  GpuResult AllocatePinned(void** data, size_t bytes) override;
  GpuResult FreePinned(void* data) override;
  GpuResult CreateStream(void** stream) override;
  GpuResult DestroyStream(void* stream) override;
  GpuResult CreateEvent(void** event) override;
  GpuResult DestroyEvent(void* event) override;
  GpuResult RecordEvent(void* event, void* stream) override;
  GpuResult QueryEvent(void* event, bool* done) override;
  GpuResult StreamWaitEvent(void* stream, void* event) override;
  GpuResult CopyAsync(void* to, const void* from, size_t bytes, void* stream) override;
  GpuResult Version(int* version) override;
  GpuResult UniqueId(NcclId* id) override;
  GpuResult Join(void** comm, int size, const NcclId& id, int rank) override;
  GpuResult AsyncError(void* comm, GpuResult* state) override;
  GpuResult AllReduce(void* data, size_t count, NcclType type, NcclReduction reduction, void* comm,
                      void* stream) override;
  GpuResult AllGather(void* data, size_t count, NcclType type, int rank, void* comm,
                      void* stream) override;
  GpuResult Broadcast(void* data, size_t count, NcclType type, int root, void* comm,
                      void* stream) override;
  GpuResult Finalize(void* comm) override;
  GpuResult Destroy(void* comm) override;
  GpuResult Abort(void* comm) override;
  std::string LastError(void* comm) const override;
  absl::Time Now() override;
  void Pause(int poll) override;

 private:
  struct Memory {
    size_t bytes = 0;
    bool pinned = false;
  };
  struct Fault {
    int remaining = 0;
    GpuResult result;
  };

  // Counts the call and returns its fault.
  GpuResult Enter(const std::string& function);
  GpuResult Allocate(void** data, size_t bytes, bool pinned);
  GpuResult Free(void* data, bool pinned);
  bool Holds(const void* data, size_t bytes, bool pinned_too);
  GpuResult Defer(FakeComm* comm, std::function<void()> launch);

  mutable std::mutex mutex_;
  std::map<std::string, int> calls_;
  std::map<std::string, Fault> faults_;
  std::map<const std::byte*, Memory> memory_;
  std::set<std::unique_ptr<FakeStream>> streams_;
  std::vector<std::unique_ptr<FakeComm>> comms_;
  std::set<std::unique_ptr<std::shared_ptr<FakeEvent>>> events_;  // handles point into it
  std::shared_ptr<FakeEvent> held_;
  GpuResult async_error_;
  GpuResult device_count_result_;
  int device_count_ = 1;
  int version_ = 22809;
  bool ignore_aborts_ = false;
  bool virtual_time_ = false;
  absl::Time now_;
  std::function<void()> on_pause_;
};

// A FakeGpu a rank. Outlives the communicators on it.
class FakeNcclNode {
 public:
  explicit FakeNcclNode(int size);
  FakeGpu& gpu(int rank) { return *gpus_[rank]; }
  std::shared_ptr<FakeGpu> api(int rank) { return gpus_[rank]; }

 private:
  std::vector<std::shared_ptr<FakeGpu>> gpus_;
};

// One communicator a rank, each connected by a thread of its own.
absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectFakeNccl(
    FakeNcclNode& node, int size, const NcclOptions& options);

}  // namespace sparsebalance::comm_testing
