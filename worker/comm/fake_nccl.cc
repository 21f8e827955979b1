#include "worker/comm/fake_nccl.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/fake_nccl_group.h"

namespace sparsebalance::comm_testing {
namespace {

constexpr GpuResult kInvalidValue = {"CUDA", 1, "invalid argument"};
constexpr GpuResult kNcclInvalid = {"NCCL", 4, "invalid argument"};
constexpr GpuResult kInProgress = {"NCCL", kNcclInProgress, "in progress"};
constexpr GpuResult kPeerGone = {"NCCL", kNcclRemoteError, "remote process exited"};

// Ids are numbers of groups that wait for their ranks.
std::mutex groups_mutex;
uint64_t next_group = 1;
std::map<uint64_t, std::weak_ptr<FakeGroup>>& Groups() {
  static auto* groups = new std::map<uint64_t, std::weak_ptr<FakeGroup>>();
  return *groups;
}

std::shared_ptr<FakeGroup> GroupOf(const NcclId& id, int size) {
  uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof(number));
  const std::lock_guard<std::mutex> lock(groups_mutex);
  std::shared_ptr<FakeGroup> group = Groups()[number].lock();
  if (group == nullptr) {
    group = std::make_shared<FakeGroup>(size);
    Groups()[number] = group;
  }
  return group;
}

FakeStream* Stream(void* stream) { return static_cast<FakeStream*>(stream); }

// Tasks on streams own the event too: it may be destroyed before they run.
std::shared_ptr<FakeEvent>& Event(void* event) {
  return *static_cast<std::shared_ptr<FakeEvent>*>(event);
}

}  // namespace

FakeGpu::FakeGpu() = default;

FakeGpu::~FakeGpu() {
  Release();
  for (const std::unique_ptr<FakeComm>& comm : comms_) comm->group->Abort(comm->aborted);
  streams_.clear();
  for (const auto& [data, memory] : memory_) delete[] data;
}

void FakeGpu::FailCall(const std::string& function, int nth, const GpuResult& result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  faults_[function] = {nth, result};
}

void FakeGpu::SetAsyncError(const GpuResult& state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  async_error_ = state;
}

void FakeGpu::SetDeviceCount(int count, const GpuResult& result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_count_ = count;
  device_count_result_ = result;
}

void FakeGpu::IgnoreAborts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ignore_aborts_ = true;
}

void FakeGpu::Hold(void* stream) {
  std::shared_ptr<FakeEvent> held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (held_ == nullptr) held_ = std::make_shared<FakeEvent>();
    held = held_;
  }
  Stream(stream)->Push([held] { held->Await(1); });
}

void FakeGpu::Release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (held_ != nullptr) held_->Complete(1);
  ignore_aborts_ = false;
  for (const std::unique_ptr<FakeComm>& comm : comms_) {
    if (comm->gone) comm->group->Abort(comm->aborted);
  }
}

void FakeGpu::UseVirtualTime() {
  const std::lock_guard<std::mutex> lock(mutex_);
  virtual_time_ = true;
}

void FakeGpu::OnPause(std::function<void()> hook) {
  const std::lock_guard<std::mutex> lock(mutex_);
  on_pause_ = std::move(hook);
}

void FakeGpu::SetVersion(int version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  version_ = version;
}

int FakeGpu::calls(const std::string& function) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

int FakeGpu::live_allocations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(memory_.size());
}

GpuResult FakeGpu::Enter(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_[function];
  const auto fault = faults_.find(function);
  if (fault == faults_.end() || --fault->second.remaining > 0) return {};
  const GpuResult result = fault->second.result;
  faults_.erase(fault);
  return result;
}

GpuResult FakeGpu::DeviceCount(int* count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *count = device_count_;
  return device_count_result_;
}

GpuResult FakeGpu::SetDevice(int device) { return Enter("SetDevice"); }

GpuResult FakeGpu::Allocate(void** data, size_t bytes, bool pinned) {
  auto* memory = new std::byte[bytes];
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_[memory] = {bytes, pinned};
  *data = memory;
  return {};
}

GpuResult FakeGpu::Free(void* data, bool pinned) {
  auto* memory = static_cast<std::byte*>(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = memory_.find(memory);
  if (found == memory_.end() || found->second.pinned != pinned) return kInvalidValue;
  memory_.erase(found);
  delete[] memory;
  return {};
}

GpuResult FakeGpu::AllocateDevice(void** data, size_t bytes) {
  const GpuResult fault = Enter("AllocateDevice");
  return fault.ok() ? Allocate(data, bytes, false) : fault;
}
GpuResult FakeGpu::FreeDevice(void* data) { return Free(data, false); }
GpuResult FakeGpu::AllocatePinned(void** data, size_t bytes) {
  const GpuResult fault = Enter("AllocatePinned");
  return fault.ok() ? Allocate(data, bytes, true) : fault;
}
GpuResult FakeGpu::FreePinned(void* data) { return Free(data, true); }

bool FakeGpu::Holds(const void* data, size_t bytes, bool pinned_too) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = memory_.upper_bound(begin);
  if (found == memory_.begin()) return false;
  --found;
  return (pinned_too || !found->second.pinned) &&
         begin + bytes <= found->first + found->second.bytes;
}

GpuResult FakeGpu::CreateStream(void** stream) {
  const GpuResult fault = Enter("CreateStream");
  if (!fault.ok()) return fault;
  auto created = std::make_unique<FakeStream>();
  const std::lock_guard<std::mutex> lock(mutex_);
  *stream = created.get();
  streams_.insert(std::move(created));
  return {};
}

// The thread runs on until the GPU is gone: this call does not wait.
GpuResult FakeGpu::DestroyStream(void* stream) { return Enter("DestroyStream"); }

GpuResult FakeGpu::CreateEvent(void** event) {
  const GpuResult fault = Enter("CreateEvent");
  if (!fault.ok()) return fault;
  auto created = std::make_unique<std::shared_ptr<FakeEvent>>(std::make_shared<FakeEvent>());
  const std::lock_guard<std::mutex> lock(mutex_);
  *event = created.get();
  events_.insert(std::move(created));
  return {};
}

GpuResult FakeGpu::DestroyEvent(void* event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = events_.begin(); it != events_.end(); ++it) {
    if (it->get() != event) continue;
    events_.erase(it);
    return {};
  }
  return kInvalidValue;
}

GpuResult FakeGpu::RecordEvent(void* event, void* stream) {
  const GpuResult fault = Enter("RecordEvent");
  if (!fault.ok()) return fault;
  const std::shared_ptr<FakeEvent> shared = Event(event);
  const uint64_t number = shared->Record();
  Stream(stream)->Push([shared, number] { shared->Complete(number); });
  return {};
}

GpuResult FakeGpu::QueryEvent(void* event, bool* done) {
  const GpuResult fault = Enter("QueryEvent");
  if (!fault.ok()) return fault;
  FakeEvent& state = *Event(event);
  *done = state.Reached(state.recorded());
  return {};
}

GpuResult FakeGpu::StreamWaitEvent(void* stream, void* event) {
  const GpuResult fault = Enter("StreamWaitEvent");
  if (!fault.ok()) return fault;
  const std::shared_ptr<FakeEvent> shared = Event(event);
  const uint64_t number = shared->recorded();
  Stream(stream)->Push([shared, number] { shared->Await(number); });
  return {};
}

GpuResult FakeGpu::CopyAsync(void* to, const void* from, size_t bytes, void* stream) {
  const GpuResult fault = Enter("CopyAsync");
  if (!fault.ok()) return fault;
  if (!Holds(to, bytes, true) || !Holds(from, bytes, true)) return kInvalidValue;
  Stream(stream)->Push([=] { std::memcpy(to, from, bytes); });
  return {};
}

GpuResult FakeGpu::Version(int* version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *version = version_;
  return {};
}

GpuResult FakeGpu::UniqueId(NcclId* id) {
  const GpuResult fault = Enter("UniqueId");
  if (!fault.ok()) return fault;
  const std::lock_guard<std::mutex> lock(groups_mutex);
  const uint64_t number = next_group++;
  std::memcpy(id->data(), &number, sizeof(number));
  return {};
}

GpuResult FakeGpu::Join(void** comm, int size, const NcclId& id, int rank) {
  const GpuResult fault = Enter("Join");
  if (!fault.ok()) return fault;
  auto created = std::make_unique<FakeComm>();
  created->group = GroupOf(id, size);
  created->rank = rank;
  created->group->Join();
  const std::lock_guard<std::mutex> lock(mutex_);
  *comm = created.get();
  comms_.push_back(std::move(created));
  return kInProgress;
}

GpuResult FakeGpu::AsyncError(void* comm, GpuResult* state) {
  const GpuResult fault = Enter("AsyncError");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone) return kNcclInvalid;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    *state = async_error_;
    if (!state->ok()) return {};
  }
  const bool idle = self->idle();
  if (!idle && self->group->anyone_left()) {
    *state = kPeerGone;
  } else if ((self->joining && !self->group->complete()) || (self->finalizing && !idle) ||
             --self->in_progress > 0) {
    *state = kInProgress;
  } else {
    self->joining = false;
    if (self->launch) std::exchange(self->launch, nullptr)();
  }
  return {};
}

GpuResult FakeGpu::Defer(FakeComm* comm, std::function<void()> launch) {
  comm->launch = std::move(launch);
  comm->in_progress = 2;
  return kInProgress;
}

namespace {

// What puts the call onto the stream.
std::function<void()> Launch(FakeComm* comm, const FakeCall& call, FakeStream* stream) {
  return [=] {
    const uint64_t index = comm->issued++;
    stream->Push([=] { comm->group->Run(comm->rank, index, call, comm->aborted); });
  };
}

}  // namespace

GpuResult FakeGpu::AllReduce(void* data, size_t count, NcclType type, NcclReduction reduction,
                             void* comm, void* stream) {
  const GpuResult fault = Enter("AllReduce");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone || self->launch || !Holds(data, count * FakeBytes(type), false)) {
    return kNcclInvalid;
  }
  const FakeCall call = {FakeKind::kAllReduce,         type, reduction, 0, count,
                         static_cast<std::byte*>(data)};
  return Defer(self, Launch(self, call, Stream(stream)));
}

GpuResult FakeGpu::AllGather(void* data, size_t count, NcclType type, int rank, void* comm,
                             void* stream) {
  const GpuResult fault = Enter("AllGather");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone || self->launch || rank != self->rank ||
      !Holds(data, (rank + 1) * count * FakeBytes(type), false)) {
    return kNcclInvalid;
  }
  const FakeCall call = {FakeKind::kAllGather,         type, NcclReduction::kSum, 0, count,
                         static_cast<std::byte*>(data)};
  return Defer(self, Launch(self, call, Stream(stream)));
}

GpuResult FakeGpu::Broadcast(void* data, size_t count, NcclType type, int root, void* comm,
                             void* stream) {
  const GpuResult fault = Enter("Broadcast");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone || self->launch || !Holds(data, count * FakeBytes(type), false)) {
    return kNcclInvalid;
  }
  const FakeCall call = {FakeKind::kBroadcast,         type, NcclReduction::kSum, root, count,
                         static_cast<std::byte*>(data)};
  return Defer(self, Launch(self, call, Stream(stream)));
}

GpuResult FakeGpu::Finalize(void* comm) {
  const GpuResult fault = Enter("Finalize");
  if (!fault.ok()) return fault;
  static_cast<FakeComm*>(comm)->finalizing = true;
  return kInProgress;
}

GpuResult FakeGpu::Destroy(void* comm) {
  const GpuResult fault = Enter("Destroy");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone || !self->idle()) return kNcclInvalid;
  self->gone = true;
  self->group->Leave();
  return {};
}

GpuResult FakeGpu::Abort(void* comm) {
  const GpuResult fault = Enter("Abort");
  if (!fault.ok()) return fault;
  auto* self = static_cast<FakeComm*>(comm);
  if (self->gone) return kNcclInvalid;
  const std::lock_guard<std::mutex> lock(mutex_);
  self->gone = true;
  self->launch = nullptr;
  self->group->Leave();
  if (!ignore_aborts_) self->group->Abort(self->aborted);
  return {};
}

std::string FakeGpu::LastError(void* comm) const {
  return static_cast<FakeComm*>(comm)->gone ? "use of a communicator that is gone" : "";
}

absl::Time FakeGpu::Now() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return virtual_time_ ? now_ : absl::Now();
}

void FakeGpu::Pause(int poll) {
  std::function<void()> hook;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++calls_["Pause"];
    if (std::all_of(streams_.begin(), streams_.end(),
                    [](const std::unique_ptr<FakeStream>& stream) { return stream->IsStuck(); })) {
      now_ += absl::Seconds(1);
    }
    hook = on_pause_;
  }
  if (hook) hook();
  std::this_thread::yield();
}

FakeNcclNode::FakeNcclNode(int size) {
  for (int r = 0; r < size; ++r) gpus_.push_back(std::make_shared<FakeGpu>());
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ConnectFakeNccl(
    FakeNcclNode& node, int size, const NcclOptions& options) {
  BlobBoard board(size);
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  const std::vector<absl::Status> statuses = RunRanks(size, [&](int r) -> absl::Status {
    absl::StatusOr<std::unique_ptr<NcclCommunicator>> comm = NcclCommunicator::Connect(
        node.api(r), r, size, options,
        [&](std::string blob) -> absl::StatusOr<std::vector<std::string>> {
          return board.Exchange(r, std::move(blob));
        });
    if (!comm.ok()) return comm.status();
    ranks[r] = *std::move(comm);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return ranks;
}

}  // namespace sparsebalance::comm_testing
