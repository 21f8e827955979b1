#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>

#include "absl/time/clock.h"
#include "worker/comm/nccl_api.h"

namespace sparsebalance {
namespace {

static_assert(kNcclSystemError == ncclSystemError);
static_assert(kNcclRemoteError == ncclRemoteError);
static_assert(kNcclInProgress == ncclInProgress);
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

GpuResult From(cudaError_t error) {
  if (error == cudaSuccess) return {};
  // The same error would be found again by whoever asks for the last one next.
  (void)cudaGetLastError();
  return {"CUDA", static_cast<int>(error), cudaGetErrorString(error)};
}

GpuResult From(ncclResult_t result) {
  if (result == ncclSuccess) return {};
  return {"NCCL", static_cast<int>(result), ncclGetErrorString(result)};
}

ncclDataType_t ToNccl(NcclType type) {
  switch (type) {
    case NcclType::kFloat:
      return ncclFloat32;
    case NcclType::kDouble:
      return ncclFloat64;
    case NcclType::kInt64:
      return ncclInt64;
  }
  return ncclNumTypes;
}

ncclRedOp_t ToNccl(NcclReduction reduction) {
  switch (reduction) {
    case NcclReduction::kSum:
      return ncclSum;
    case NcclReduction::kMax:
      return ncclMax;
    case NcclReduction::kMin:
      return ncclMin;
  }
  return ncclNumOps;
}

size_t Bytes(NcclType type) { return type == NcclType::kFloat ? 4 : 8; }

ncclComm_t Comm(void* comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

class SystemApi final : public NcclApi {
 public:
  GpuResult DeviceCount(int* count) override { return From(cudaGetDeviceCount(count)); }
  GpuResult SetDevice(int device) override { return From(cudaSetDevice(device)); }
  GpuResult AllocateDevice(void** data, size_t bytes) override {
    return From(cudaMalloc(data, bytes));
  }
  GpuResult FreeDevice(void* data) override { return From(cudaFree(data)); }
  GpuResult AllocatePinned(void** data, size_t bytes) override {
    return From(cudaHostAlloc(data, bytes, cudaHostAllocDefault));
  }
  GpuResult FreePinned(void* data) override { return From(cudaFreeHost(data)); }
  GpuResult CreateStream(void** stream) override {
    cudaStream_t created = nullptr;
    const GpuResult result = From(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
    *stream = created;
    return result;
  }
  GpuResult DestroyStream(void* stream) override { return From(cudaStreamDestroy(Stream(stream))); }
  GpuResult CreateEvent(void** event) override {
    cudaEvent_t created = nullptr;
    const GpuResult result = From(cudaEventCreateWithFlags(&created, cudaEventDisableTiming));
    *event = created;
    return result;
  }
  GpuResult DestroyEvent(void* event) override { return From(cudaEventDestroy(Event(event))); }
  GpuResult RecordEvent(void* event, void* stream) override {
    return From(cudaEventRecord(Event(event), Stream(stream)));
  }
  GpuResult QueryEvent(void* event, bool* done) override {
    const cudaError_t error = cudaEventQuery(Event(event));
    *done = error == cudaSuccess;
    if (error != cudaErrorNotReady) return From(error);
    (void)cudaGetLastError();
    return {};
  }
  GpuResult StreamWaitEvent(void* stream, void* event) override {
    return From(cudaStreamWaitEvent(Stream(stream), Event(event), 0));
  }
  GpuResult CopyAsync(void* to, const void* from, size_t bytes, void* stream) override {
    return From(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)));
  }

  GpuResult Version(int* version) override { return From(ncclGetVersion(version)); }
  GpuResult UniqueId(NcclId* id) override {
    ncclUniqueId unique = {};
    const GpuResult result = From(ncclGetUniqueId(&unique));
    std::memcpy(id->data(), unique.internal, id->size());
    return result;
  }
  GpuResult Join(void** comm, int size, const NcclId& id, int rank) override {
    ncclUniqueId unique = {};
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t joined = nullptr;
    const GpuResult result = From(ncclCommInitRankConfig(&joined, size, unique, rank, &config));
    *comm = joined;
    return result;
  }
  GpuResult AsyncError(void* comm, GpuResult* state) override {
    ncclResult_t async = ncclSuccess;
    const GpuResult result = From(ncclCommGetAsyncError(Comm(comm), &async));
    *state = From(async);
    return result;
  }
  GpuResult AllReduce(void* data, size_t count, NcclType type, NcclReduction reduction, void* comm,
                      void* stream) override {
    return From(ncclAllReduce(data, data, count, ToNccl(type), ToNccl(reduction), Comm(comm),
                              Stream(stream)));
  }
  GpuResult AllGather(void* data, size_t count, NcclType type, int rank, void* comm,
                      void* stream) override {
    const char* own = static_cast<const char*>(data) + rank * count * Bytes(type);
    return From(ncclAllGather(own, data, count, ToNccl(type), Comm(comm), Stream(stream)));
  }
  GpuResult Broadcast(void* data, size_t count, NcclType type, int root, void* comm,
                      void* stream) override {
    return From(ncclBroadcast(data, data, count, ToNccl(type), root, Comm(comm), Stream(stream)));
  }
  GpuResult Finalize(void* comm) override { return From(ncclCommFinalize(Comm(comm))); }
  GpuResult Destroy(void* comm) override { return From(ncclCommDestroy(Comm(comm))); }
  GpuResult Abort(void* comm) override { return From(ncclCommAbort(Comm(comm))); }
  std::string LastError(void* comm) const override {
    const char* text = ncclGetLastError(Comm(comm));
    return text == nullptr ? "" : text;
  }

  absl::Time Now() override { return absl::Now(); }
  // Small collectives are over within tens of microseconds, where a sleep would cost more than the
  // wait; a long wait should leave the core to others.
  void Pause(int poll) override {
    constexpr int kSpins = 2000;
    if (poll < kSpins) return;
    absl::SleepFor(absl::Microseconds(std::min(1000, 20 + (poll - kSpins) / 10)));
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<NcclApi>> SystemNcclApi() { return std::make_shared<SystemApi>(); }

}  // namespace sparsebalance
