#include "worker/train/gradient_buckets.h"

#include <algorithm>
#include <deque>
#include <span>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

std::vector<GradientBucket> CutGradients(int64_t size, size_t bucket_bytes) {
  const int64_t count = static_cast<int64_t>(bucket_bytes / 256 * 256 / sizeof(float));
  std::vector<GradientBucket> buckets;
  for (int64_t end = size; end > 0;) {
    const int64_t begin = (end - 1) / count * count;
    buckets.push_back({begin, end});
    end = begin;
  }
  return buckets;
}

namespace train_internal {
namespace {

// On a communicator that takes device buffers. Uses the backend on the caller's thread only, and
// leaves the compute stream as the current one.
class DeviceRunner final : public BucketRunner {
 public:
  DeviceRunner(Communicator* comm, kernels::Backend* backend, kernels::DeviceBuffer gradients,
               kernels::Stream* compute_stream, std::unique_ptr<kernels::Stream> stream)
      : comm_(comm),
        backend_(backend),
        gradients_(gradients),
        compute_stream_(compute_stream),
        stream_(std::move(stream)) {}

  absl::Status Start(const GradientBucket& bucket) override {
    if (!error_.ok()) return error_;
    absl::StatusOr<std::unique_ptr<kernels::Event>> ready = backend_->RecordEvent();
    error_ = ready.status();
    if (!error_.ok()) return error_;
    events_.push_back(*std::move(ready));
    error_ = OnOwnStream([&]() -> absl::Status {
      SB_RETURN_IF_ERROR(backend_->WaitEvent(*events_.back()));
      SB_ASSIGN_OR_RETURN(const kernels::NativeBuffer native,
                          backend_->Native(gradients_.Slice(bucket.begin, bucket.size())));
      return comm_->AllReduceSum(
          FloatBuffer::Device(native.data, static_cast<size_t>(bucket.size()), native.stream));
    });
    return error_;
  }

  absl::Status Finish() override {
    if (error_.ok()) error_ = FollowOwnStream();
    if (error_.ok()) error_ = comm_->Wait();
    if (error_.ok()) events_.clear();
    return error_;
  }

  absl::Status error() const override { return error_; }

 private:
  template <typename F>
  absl::Status OnOwnStream(F&& body) {
    SB_RETURN_IF_ERROR(backend_->SetStream(stream_.get()));
    const absl::Status status = body();
    const absl::Status back = backend_->SetStream(compute_stream_);
    return status.ok() ? back : status;
  }

  absl::Status FollowOwnStream() {
    SB_RETURN_IF_ERROR(OnOwnStream([&]() -> absl::Status {
      SB_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Event> reduced, backend_->RecordEvent());
      events_.push_back(std::move(reduced));
      return absl::OkStatus();
    }));
    return backend_->WaitEvent(*events_.back());
  }

  Communicator* const comm_;
  kernels::Backend* const backend_;
  const kernels::DeviceBuffer gradients_;
  kernels::Stream* const compute_stream_;
  const std::unique_ptr<kernels::Stream> stream_;
  std::vector<std::unique_ptr<kernels::Event>> events_;  // of this step
  absl::Status error_;
};

// On memory that the host reaches, by a thread of its own.
class HostRunner final : public BucketRunner {
 public:
  HostRunner(Communicator* comm, kernels::Backend* backend, float* gradients)
      : comm_(comm), backend_(backend), gradients_(gradients), thread_([this] { Loop(); }) {}

  ~HostRunner() override {
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
    }
    thread_.join();
  }

  absl::Status Start(const GradientBucket& bucket) override {
    absl::Status status = error();
    if (status.ok()) status = backend_->Synchronize();
    absl::MutexLock lock(&mutex_);
    if (error_.ok()) error_ = status;
    if (error_.ok()) waiting_.push_back(bucket);
    return error_;
  }

  absl::Status Finish() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &HostRunner::Idle));
    return error_;
  }

  absl::Status error() const override {
    absl::MutexLock lock(&mutex_);
    return error_;
  }

 private:
  void Loop() {
    for (;;) {
      GradientBucket bucket;
      {
        absl::MutexLock lock(&mutex_);
        running_ = false;
        mutex_.Await(absl::Condition(this, &HostRunner::HasNews));
        if (closing_) return;
        bucket = waiting_.front();
        waiting_.pop_front();
        running_ = true;
      }
      const absl::Status status = comm_->AllReduceSum(
          std::span<float>(gradients_ + bucket.begin, static_cast<size_t>(bucket.size())));
      if (status.ok()) continue;
      absl::MutexLock lock(&mutex_);
      error_ = status;
      waiting_.clear();
    }
  }

  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closing_ || !waiting_.empty();
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_.empty() && !running_; }

  Communicator* const comm_;
  kernels::Backend* const backend_;
  float* const gradients_;
  mutable absl::Mutex mutex_;
  std::deque<GradientBucket> waiting_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

// On device memory with a communicator for the host's. Copies wait for the device, so they would
// hold up backward: all of it happens at the end.
class CopyingRunner final : public BucketRunner {
 public:
  CopyingRunner(Communicator* comm, kernels::Backend* backend, kernels::DeviceBuffer gradients)
      : comm_(comm), backend_(backend), gradients_(gradients) {}

  absl::Status Start(const GradientBucket& bucket) override {
    if (error_.ok()) waiting_.push_back(bucket);
    return error_;
  }

  absl::Status Finish() override {
    for (const GradientBucket& bucket : std::exchange(waiting_, {})) {
      if (error_.ok()) error_ = Reduce(bucket);
    }
    return error_;
  }

  absl::Status error() const override { return error_; }

 private:
  absl::Status Reduce(const GradientBucket& bucket) {
    const kernels::DeviceBuffer values = gradients_.Slice(bucket.begin, bucket.size());
    host_.resize(static_cast<size_t>(bucket.size()));
    SB_RETURN_IF_ERROR(backend_->CopyToHost(kernels::ConstDeviceBuffer(values), host_.data()));
    SB_RETURN_IF_ERROR(comm_->AllReduceSum(std::span<float>(host_)));
    return backend_->CopyToDevice(host_, values);
  }

  Communicator* const comm_;
  kernels::Backend* const backend_;
  const kernels::DeviceBuffer gradients_;
  std::vector<GradientBucket> waiting_;
  std::vector<float> host_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BucketRunner>> CreateBucketRunner(Communicator* comm,
                                                                 kernels::Backend* backend,
                                                                 kernels::DeviceBuffer gradients,
                                                                 kernels::Stream* compute_stream) {
  if (comm->Supports(FloatBuffer::Location::kDevice)) {
    const absl::StatusOr<kernels::NativeBuffer> native = backend->Native(gradients);
    if (native.ok()) {
      SB_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Stream> stream, backend->CreateStream());
      return std::make_unique<DeviceRunner>(comm, backend, gradients, compute_stream,
                                            std::move(stream));
    }
    if (!absl::IsUnimplemented(native.status())) return native.status();
  }
  const absl::StatusOr<float*> mapped = backend->MapHost(gradients);
  if (mapped.ok()) return std::make_unique<HostRunner>(comm, backend, *mapped);
  if (!absl::IsUnimplemented(mapped.status())) return mapped.status();
  return std::make_unique<CopyingRunner>(comm, backend, gradients);
}

}  // namespace train_internal
}  // namespace sparsebalance
