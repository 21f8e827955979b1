#include "worker/train/gradient_reducer.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    Communicator* comm, kernels::Backend* backend, kernels::DeviceBuffer gradients,
    const GradientReducerOptions& options) {
  if (options.bucket_bytes < 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket_bytes is ", options.bucket_bytes, "; it must be at least 256"));
  }
  SB_ASSIGN_OR_RETURN(
      std::unique_ptr<train_internal::BucketRunner> runner,
      train_internal::CreateBucketRunner(comm, backend, gradients, options.compute_stream));
  return std::unique_ptr<GradientReducer>(
      new GradientReducer(comm, CutGradients(gradients.size(), options.bucket_bytes),
                          std::move(runner), gradients.size()));
}

GradientReducer::~GradientReducer() {
  if (in_step_) comm_->Abort();
}

absl::Status GradientReducer::Begin() {
  if (in_step_) {
    return absl::FailedPreconditionError("Begin: the step before has not been finished");
  }
  if (!error_.ok()) return error_;
  in_step_ = true;
  next_ = 0;
  marked_.clear();
  return absl::OkStatus();
}

absl::Status GradientReducer::MarkReady(int64_t begin, int64_t end) {
  if (!in_step_) return absl::FailedPreconditionError("MarkReady: no step has begun");
  if (begin < 0 || end < begin || end > size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("MarkReady: [", begin, ", ", end, ") is no range of [0, ", size_, ")"));
  }
  if (begin < end) {
    auto next = marked_.lower_bound(begin);
    auto previous = next == marked_.begin() ? marked_.end() : std::prev(next);
    if ((next != marked_.end() && next->first < end) ||
        (previous != marked_.end() && previous->second > begin)) {
      return absl::InvalidArgumentError(absl::StrCat("MarkReady: a part of [", begin, ", ", end,
                                                     ") was marked before in this step"));
    }
    if (next != marked_.end() && next->first == end) {
      end = next->second;
      marked_.erase(next);
    }
    if (previous != marked_.end() && previous->second == begin) {
      previous->second = end;
    } else {
      marked_[begin] = end;
    }
  }
  while (next_ < buckets_.size() && IsMarked(buckets_[next_])) SB_RETURN_IF_ERROR(StartNext());
  return runner_->error();
}

bool GradientReducer::IsMarked(const GradientBucket& bucket) const {
  const auto after = marked_.upper_bound(bucket.begin);
  return after != marked_.begin() && std::prev(after)->second >= bucket.end;
}

absl::Status GradientReducer::StartNext() { return runner_->Start(buckets_[next_++]); }

absl::Status GradientReducer::Finish() {
  if (!in_step_) return absl::FailedPreconditionError("Finish: no step has begun");
  while (next_ < buckets_.size() && StartNext().ok()) {
  }
  error_ = runner_->Finish();
  in_step_ = false;
  // Also where the communicator is not what failed: its peers wait for the rest of the buckets.
  if (!error_.ok()) comm_->Abort();
  return error_;
}

}  // namespace sparsebalance
