#include "worker/comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/collective_op.h"
#include "worker/comm/nccl_calls.h"
#include "worker/comm/nccl_device.h"
#include "worker/comm/nccl_rendezvous.h"

namespace sparsebalance {

using comm_internal::CollectiveOp;
using comm_internal::NcclBlob;
using comm_internal::NcclCalls;
using comm_internal::NcclDevice;
using comm_internal::NcclHeader;
using comm_internal::OpKind;

namespace {

absl::Status CheckOptions(int rank, int size, const NcclOptions& options) {
  constexpr int kMaxSize = 16384;
  if (size < 1 || size > kMaxSize || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size,
                                                   ": the size must be within [1, ", kMaxSize,
                                                   "] and the rank within [0, size)"));
  }
  for (const absl::Duration duration : {options.timeout, options.leave_timeout}) {
    if (duration >= absl::Milliseconds(1) && duration <= absl::Hours(100)) continue;
    return absl::InvalidArgumentError(absl::StrCat("a timeout is ", absl::FormatDuration(duration),
                                                   "; it must be within [1ms, 100h]"));
  }
  if (options.bucket_bytes == 0 || options.bucket_bytes % 256 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bucket_bytes is ", options.bucket_bytes,
                                                   "; it must be a positive multiple of 256"));
  }
  const size_t least = std::max<size_t>(1024, 8 * static_cast<size_t>(size));
  if (options.staging_bytes < least || options.staging_bytes % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("staging_bytes is ", options.staging_bytes,
                                                   "; it must be a multiple of 8 and at least ",
                                                   least, " for ", size, " ranks"));
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(NcclApi& api, int rank, int device) {
  int count = 0;
  const GpuResult result = api.DeviceCount(&count);
  if (!result.ok() || count == 0) {
    const std::string why =
        result.ok()
            ? std::string("no CUDA device is visible")
            : std::string(
                  GpuError(result, device, "cudaGetDeviceCount", __FILE__, __LINE__).message());
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, ": NCCL needs a GPU, and there is no CUDA driver or device here: ", why,
        ". Look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use Gloo, which works on host memory"));
  }
  if (device < 0 || device >= count) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": device is ", device,
                                                   "; this node has ", count,
                                                   " that CUDA sees, counted from 0"));
  }
  return absl::OkStatus();
}

// Publishes this rank's blob and returns rank 0's id.
absl::StatusOr<NcclId> ExchangeId(const NcclBlob& self, const RendezvousExchange& exchange) {
  if (self.size == 1) return self.id;
  absl::StatusOr<std::vector<std::string>> blobs = exchange(comm_internal::EncodeNcclBlob(self));
  if (!blobs.ok()) return blobs.status();
  if (blobs->size() != self.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rendezvous gave ", blobs->size(), " blobs for ", self.size, " ranks"));
  }
  NcclId id = {};
  for (int r = 0; r < static_cast<int>(self.size); ++r) {
    const absl::StatusOr<NcclBlob> blob = comm_internal::ParseNcclBlob((*blobs)[r], r, self);
    if (!blob.ok()) return blob.status();
    if (blob->rank == self.rank && *blob != self) {
      return absl::InvalidArgumentError(
          "the rendezvous gave back another blob for this rank than it was given");
    }
    if (r == 0) id = blob->id;
  }
  return id;
}

}  // namespace

class NcclCommunicator::Impl {
 public:
  Impl(std::shared_ptr<NcclApi> api, int rank, int size, const NcclOptions& options)
      : rank_(rank),
        size_(size),
        device_(std::move(api),
                {options.device, rank, size, options.timeout, options.leave_timeout,
                 options.staging_bytes},
                &stop_),
        calls_(&device_, rank, size, options.bucket_bytes, options.staging_bytes) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  absl::Status Open(NcclBlob self, const RendezvousExchange& exchange) {
    absl::MutexLock call_lock(&call_mutex_);
    // Whatever can fail without the peers comes before they wait for this rank.
    absl::Status status = device_.Allocate(sizeof(NcclHeader));
    if (!status.ok()) return status;
    if (rank_ == 0) {
      SB_GPU_RETURN_IF_ERROR(device_.device(), device_.api().UniqueId(&self.id));
    }
    const absl::StatusOr<NcclId> id = ExchangeId(self, exchange);
    if (!id.ok()) return id.status();
    status = device_.Join(*id);
    // Proof that kernels and copies run, on all ranks.
    if (status.ok()) status = calls_.RunHost({OpKind::kBarrier}, nullptr, nullptr);
    if (!status.ok()) {
      device_.Abort();
      return absl::Status(status.code(),
                          absl::StrCat("rank ", rank_, ": connecting: ", status.message()));
    }
    return status;
  }

  absl::Status Host(OpKind kind, size_t count, const void* in, void* out, int root = 0) {
    return Run({kind, count, static_cast<uint32_t>(root)}, [&](const CollectiveOp& op) {
      return calls_.RunHost(op, static_cast<const std::byte*>(in), static_cast<std::byte*>(out));
    });
  }

  absl::Status Device(OpKind kind, const FloatBuffer& values, int root = 0) {
    return Run({kind, values.size, static_cast<uint32_t>(root)},
               [&](const CollectiveOp& op) { return calls_.RunDevice(op, values); });
  }

  absl::Status Wait() {
    absl::Status status;
    {
      absl::MutexLock call_lock(&call_mutex_);
      status = final();
      if (status.ok()) {
        status = device_.MakeCurrent();
        if (status.ok()) status = calls_.Wait();
        if (!status.ok()) status = Conclude(absl::StrCat("waiting for ", calls_.pending()), status);
      }
    }
    AbortIfAsked();
    return status;
  }

  void Abort() {
    {
      absl::MutexLock lock(&state_mutex_);
      if (final_.ok()) {
        final_ = absl::CancelledError(absl::StrCat("rank ", rank_, ": aborted by this rank"));
      }
    }
    stop_.store(true);
    AbortIfAsked();
  }

 private:
  absl::Status Run(CollectiveOp op, absl::FunctionRef<absl::Status(const CollectiveOp&)> body) {
    absl::Status status;
    {
      absl::MutexLock call_lock(&call_mutex_);
      op.sequence = ++calls_made_;
      status = final();
      if (status.ok()) {
        status = device_.MakeCurrent();
        if (status.ok()) status = body(op);
        if (!status.ok()) status = Conclude(op.ToString(), status);
      }
    }
    AbortIfAsked();
    return status;
  }

  // Frees NCCL's communicator, which only one thread may use, once Abort() was called: the thread
  // that calls Abort() does, or the one that it finds in a call, after that.
  void AbortIfAsked() {
    if (!stop_.load() || !call_mutex_.TryLock()) return;
    device_.Abort();
    call_mutex_.Unlock();
  }

  absl::Status Conclude(const std::string& what, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mutex_) {
    std::string text = absl::StrCat("rank ", rank_, ": ", what, ": ", status.message());
    const std::string pending = calls_.pending();
    if (!pending.empty() && !absl::StrContains(what, pending)) {
      absl::StrAppend(&text, " (", pending, ", was enqueued before and not waited for)");
    }
    // Ranks that disagree about a call all find out by themselves.
    if (status.code() != absl::StatusCode::kInvalidArgument) device_.Abort();
    absl::MutexLock lock(&state_mutex_);
    if (final_.ok()) final_ = absl::Status(status.code(), text);
    return final_;
  }

  absl::Status final() const {
    absl::MutexLock lock(&state_mutex_);
    return final_;
  }

  const int rank_;
  const int size_;
  std::atomic<bool> stop_ = false;
  mutable absl::Mutex state_mutex_;
  absl::Status final_ ABSL_GUARDED_BY(state_mutex_);
  absl::Mutex call_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  uint64_t calls_made_ ABSL_GUARDED_BY(call_mutex_) = 0;
  NcclDevice device_ ABSL_GUARDED_BY(call_mutex_);
  NcclCalls calls_ ABSL_GUARDED_BY(call_mutex_);
};

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Connect(
    std::shared_ptr<NcclApi> api, int rank, int size, const NcclOptions& options,
    const RendezvousExchange& exchange) {
  absl::Status status = CheckOptions(rank, size, options);
  if (status.ok()) status = CheckDevice(*api, rank, options.device);
  if (!status.ok()) return status;
  int version = 0;
  SB_GPU_RETURN_IF_ERROR(options.device, api->Version(&version));
  NcclBlob self;
  self.rank = static_cast<uint32_t>(rank);
  self.size = static_cast<uint32_t>(size);
  self.bucket_bytes = options.bucket_bytes;
  self.staging_bytes = options.staging_bytes;
  self.nccl_version = static_cast<uint32_t>(version);
  auto impl = std::make_unique<Impl>(std::move(api), rank, size, options);
  status = impl->Open(self, exchange);
  if (!status.ok()) return status;
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(impl)));
}

NcclCommunicator::NcclCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclCommunicator::~NcclCommunicator() = default;

int NcclCommunicator::rank() const { return impl_->rank(); }
int NcclCommunicator::size() const { return impl_->size(); }
absl::Status NcclCommunicator::Wait() { return impl_->Wait(); }
void NcclCommunicator::Abort() { impl_->Abort(); }

absl::Status NcclCommunicator::AllReduceSum(FloatBuffer values) {
  if (values.location == FloatBuffer::Location::kDevice) {
    return impl_->Device(OpKind::kAllReduceSum, values);
  }
  return impl_->Host(OpKind::kAllReduceSum, values.size, values.data, values.data);
}

absl::Status NcclCommunicator::AllReduceSumDouble(std::span<double> values) {
  return impl_->Host(OpKind::kAllReduceSumDouble, values.size(), values.data(), values.data());
}

absl::Status NcclCommunicator::AllReduceMaxInt64(std::span<int64_t> values) {
  return impl_->Host(OpKind::kAllReduceMaxInt64, values.size(), values.data(), values.data());
}

absl::Status NcclCommunicator::AllReduceMinInt64(std::span<int64_t> values) {
  return impl_->Host(OpKind::kAllReduceMinInt64, values.size(), values.data(), values.data());
}

absl::Status NcclCommunicator::AllGather(std::span<const double> in, std::span<double> out) {
  absl::Status status =
      comm_internal::CheckGatherSizes(in.size(), out.size(), size(), OpKind::kAllGather);
  if (!status.ok()) return status;
  return impl_->Host(OpKind::kAllGather, in.size(), in.data(), out.data());
}

absl::Status NcclCommunicator::AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) {
  absl::Status status =
      comm_internal::CheckGatherSizes(in.size(), out.size(), size(), OpKind::kAllGatherInt64);
  if (!status.ok()) return status;
  return impl_->Host(OpKind::kAllGatherInt64, in.size(), in.data(), out.data());
}

absl::Status NcclCommunicator::Broadcast(FloatBuffer values, int root) {
  absl::Status status = comm_internal::CheckRoot(root, size());
  if (!status.ok()) return status;
  if (values.location == FloatBuffer::Location::kDevice) {
    return impl_->Device(OpKind::kBroadcast, values, root);
  }
  return impl_->Host(OpKind::kBroadcast, values.size, values.data, values.data, root);
}

absl::Status NcclCommunicator::Barrier() {
  return impl_->Host(OpKind::kBarrier, 0, nullptr, nullptr);
}

}  // namespace sparsebalance
