#include "worker/comm/gloo_communicator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/collective_op.h"
#include "worker/comm/gloo_exchange.h"
#include "worker/comm/gloo_mesh.h"

namespace sparsebalance {

using comm_internal::CollectiveOp;
using comm_internal::GlooExchange;
using comm_internal::GlooMesh;
using comm_internal::OpKind;

class GlooCommunicator::Impl {
 public:
  Impl(int rank, int size, size_t bucket_bytes, std::unique_ptr<GlooMesh> mesh)
      : rank_(rank), size_(size), bucket_bytes_(bucket_bytes), mesh_(std::move(mesh)) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  // `in` and `out` are the same for everything but a gather.
  absl::Status Run(CollectiveOp op, const void* in, void* out) {
    absl::MutexLock call_lock(&call_mutex_);
    op.sequence = ++calls_;
    {
      absl::MutexLock lock(&state_mutex_);
      if (!final_.ok()) return final_;
    }
    const size_t bytes = op.count * comm_internal::ElementBytes(op.kind);
    if (size_ == 1) {
      if (bytes > 0 && in != out) std::memcpy(out, in, bytes);
      return absl::OkStatus();
    }
    GlooExchange exchange(mesh_.get(), rank_, size_, bucket_bytes_, op);
    absl::Status status =
        exchange.Run(static_cast<const std::byte*>(in), static_cast<std::byte*>(out));
    return status.ok() ? status : Finish(op, status);
  }

  void Abort() {
    {
      absl::MutexLock lock(&state_mutex_);
      if (final_.ok()) {
        final_ = absl::CancelledError(absl::StrCat("rank ", rank_, ": aborted by this rank"));
      }
    }
    if (mesh_ == nullptr) return;
    mesh_->Abort();
    // A call under way closes the connections itself, when it has noticed.
    if (call_mutex_.TryLock()) {
      mesh_->Close(kAborted);
      call_mutex_.Unlock();
    }
  }

  absl::Status final() const {
    absl::MutexLock lock(&state_mutex_);
    return final_;
  }

  int lost_rank() const {
    absl::MutexLock lock(&state_mutex_);
    return lost_rank_;
  }

 private:
  static constexpr const char* kAborted = "it aborted";

  absl::Status Finish(const CollectiveOp& op, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mutex_) {
    // Ranks that disagree about a call all find out by themselves; closing could only hide it.
    if (status.code() != absl::StatusCode::kInvalidArgument) mesh_->Close(kAborted);
    absl::MutexLock lock(&state_mutex_);
    lost_rank_ = mesh_->lost_rank();
    if (final_.ok()) {
      final_ = absl::Status(
          status.code(), absl::StrCat("rank ", rank_, ": ", op.ToString(), ": ", status.message()));
    }
    return final_;
  }

  const int rank_;
  const int size_;
  const size_t bucket_bytes_;
  absl::Mutex call_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  uint64_t calls_ ABSL_GUARDED_BY(call_mutex_) = 0;
  mutable absl::Mutex state_mutex_;
  absl::Status final_ ABSL_GUARDED_BY(state_mutex_);
  int lost_rank_ ABSL_GUARDED_BY(state_mutex_) = -1;
  const std::unique_ptr<GlooMesh> mesh_;  // null where size is 1
};

absl::StatusOr<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Connect(
    int rank, int size, const GlooOptions& options, const RendezvousExchange& exchange) {
  constexpr int kMaxSize = 16384;  // a connection and a port a peer
  if (size < 1 || size > kMaxSize || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", size,
                                                   ": the size must be within [1, ", kMaxSize,
                                                   "] and the rank within [0, size)"));
  }
  if (options.timeout < absl::Milliseconds(1) || options.timeout > absl::Hours(100)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout is ", absl::FormatDuration(options.timeout), "; it must be within [1ms, 100h]"));
  }
  if (options.bucket_bytes < 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket_bytes is ", options.bucket_bytes, "; it must be at least 1024"));
  }
  const std::string& host = options.bind_host;
  if (options.interface.empty() && (host.empty() || host == "0.0.0.0" || host == "::")) {
    return absl::InvalidArgumentError(
        absl::StrCat("bind_host is \"", host,
                     "\", a wildcard, which tells the peers nothing; name the address that they "
                     "reach this node by, or an interface"));
  }
  std::unique_ptr<GlooMesh> mesh;
  if (size > 1) {
    absl::StatusOr<std::unique_ptr<GlooMesh>> connected =
        GlooMesh::Connect(rank, size, options, exchange);
    if (!connected.ok()) return connected.status();
    mesh = *std::move(connected);
    // The kernel accepts connections for a process that has not looked at them yet and may never
    // do: only an answer shows that a peer is there.
    GlooExchange hello(mesh.get(), rank, size, options.bucket_bytes, {OpKind::kBarrier});
    absl::Status status = hello.Run(nullptr, nullptr);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("rank ", rank, ": connecting: ", status.message()));
    }
  }
  return std::unique_ptr<GlooCommunicator>(new GlooCommunicator(
      std::make_unique<Impl>(rank, size, options.bucket_bytes, std::move(mesh))));
}

GlooCommunicator::GlooCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooCommunicator::~GlooCommunicator() = default;

int GlooCommunicator::rank() const { return impl_->rank(); }
int GlooCommunicator::size() const { return impl_->size(); }
int GlooCommunicator::lost_rank() const { return impl_->lost_rank(); }
absl::Status GlooCommunicator::Wait() { return impl_->final(); }
void GlooCommunicator::Abort() { impl_->Abort(); }

absl::Status GlooCommunicator::AllReduceSum(FloatBuffer values) {
  absl::Status status = comm_internal::CheckHostBuffer(values, OpKind::kAllReduceSum);
  if (!status.ok()) return status;
  return impl_->Run({OpKind::kAllReduceSum, values.size}, values.data, values.data);
}

absl::Status GlooCommunicator::AllReduceSumDouble(std::span<double> values) {
  return impl_->Run({OpKind::kAllReduceSumDouble, values.size()}, values.data(), values.data());
}

absl::Status GlooCommunicator::AllReduceMaxInt64(std::span<int64_t> values) {
  return impl_->Run({OpKind::kAllReduceMaxInt64, values.size()}, values.data(), values.data());
}

absl::Status GlooCommunicator::AllReduceMinInt64(std::span<int64_t> values) {
  return impl_->Run({OpKind::kAllReduceMinInt64, values.size()}, values.data(), values.data());
}

absl::Status GlooCommunicator::AllGather(std::span<const double> in, std::span<double> out) {
  absl::Status status =
      comm_internal::CheckGatherSizes(in.size(), out.size(), size(), OpKind::kAllGather);
  if (!status.ok()) return status;
  return impl_->Run({OpKind::kAllGather, in.size()}, in.data(), out.data());
}

absl::Status GlooCommunicator::AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) {
  absl::Status status =
      comm_internal::CheckGatherSizes(in.size(), out.size(), size(), OpKind::kAllGatherInt64);
  if (!status.ok()) return status;
  return impl_->Run({OpKind::kAllGatherInt64, in.size()}, in.data(), out.data());
}

absl::Status GlooCommunicator::Broadcast(FloatBuffer values, int root) {
  absl::Status status = comm_internal::CheckHostBuffer(values, OpKind::kBroadcast);
  if (status.ok()) status = comm_internal::CheckRoot(root, size());
  if (!status.ok()) return status;
  return impl_->Run({OpKind::kBroadcast, values.size, static_cast<uint32_t>(root)}, values.data,
                    values.data);
}

absl::Status GlooCommunicator::Barrier() {
  return impl_->Run({OpKind::kBarrier}, nullptr, nullptr);
}

}  // namespace sparsebalance
