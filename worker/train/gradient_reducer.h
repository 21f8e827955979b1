// Sums a step's gradients over the ranks while backward still computes the rest of them.
//
//   // Once. The gradients lie in one flat buffer, in the order of the layers.
//   SB_ASSIGN_OR_RETURN(auto reducer, GradientReducer::Create(&comm, &backend, model.grads()));
//
//   // In every step, on every rank, on the thread that uses the backend:
//   ... whatever else the ranks have to say to each other ...
//   ... all micro-batches but the last ...
//   SB_RETURN_IF_ERROR(reducer->Begin());
//   for (int layer = layers - 1; layer >= 0; --layer) {  // backward of the last micro-batch
//     SB_RETURN_IF_ERROR(Backward(layer));
//     SB_RETURN_IF_ERROR(reducer->MarkReady(GradsBegin(layer), GradsEnd(layer)));
//   }
//   SB_RETURN_IF_ERROR(reducer->Finish());  // a rank without micro-batches: Begin() and Finish()
//   ... norm, optimizer ...
//
// Between Begin() and Finish() the reducer has the communicator for itself: no other collective may
// be called on it, from any thread. (Host memory is reduced by a thread of the reducer's.)
//
// [0, N) is cut into buckets by N and the bucket size alone, so every rank cuts alike. Buckets are
// reduced one after another from the end to the begin, as backward finishes them, and always in
// this order: a bucket that is complete before its turn waits. Elements are summed as by one
// AllReduceSum of the whole buffer, so that where a communicator states its order of additions the
// result has the same bits whatever the buckets. Sums are plain: losses are already divided by the
// global count of supervised tokens.
//
// How a bucket is reduced, by what the communicator and the backend can:
//  * a GPU's buffer and a communicator that takes it (NCCL): enqueued on a stream of its own, after
//    an event on the compute stream; the compute stream goes on
//  * memory that the host reaches (CPU backend): by a helper thread, when the backend has finished
//  * neither (a GPU with Gloo): in Finish(), by copies to the host and back, a bucket at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/comm/communicator.h"
#include "worker/train/gradient_buckets.h"

namespace sparsebalance {

struct GradientReducerOptions {
  // Bytes of a bucket; at least 256, rounded down to a multiple of that. The same on every rank.
  // Smaller ones begin earlier, larger ones use the network better.
  size_t bucket_bytes = 25 << 20;
  // The stream that backward runs on and that the sums are for; null is the backend's default.
  kernels::Stream* compute_stream = nullptr;
};

// Used by one thread.
class GradientReducer {
 public:
  // `gradients` [N]; N may be 0. All three outlive it. INVALID_ARGUMENT where bucket_bytes is too
  // small; errors of the backend as they are.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      Communicator* comm, kernels::Backend* backend, kernels::DeviceBuffer gradients,
      const GradientReducerOptions& options = {});

  // In the middle of a step: aborts the communicator, so that no rank waits for this one, and
  // returns when nothing runs any more.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // FAILED_PRECONDITION where a step has begun and not finished. An error of an earlier step is
  // final and returned again.
  absl::Status Begin();

  // The gradients [begin, end) are final once the work enqueued on the compute stream so far is
  // done. Any order and any ranges, empty ones too, but none twice. Starts the buckets whose turn
  // has come. INVALID_ARGUMENT, without effect: not a range of [0, N), or marked before.
  // An error of a bucket that has failed by now is returned: backward may as well stop.
  absl::Status MarkReady(int64_t begin, int64_t end);

  // Takes all that was not marked as ready, and returns once all is reduced, with the compute
  // stream ordered after it; or with the first error, after which no later bucket is started and
  // the gradients are neither the rank's own nor the sums.
  absl::Status Finish();

  int bucket_count() const { return static_cast<int>(buckets_.size()); }

 private:
  GradientReducer(Communicator* comm, std::vector<GradientBucket> buckets,
                  std::unique_ptr<train_internal::BucketRunner> runner, int64_t size)
      : comm_(comm), buckets_(std::move(buckets)), runner_(std::move(runner)), size_(size) {}

  bool IsMarked(const GradientBucket& bucket) const;
  absl::Status StartNext();

  Communicator* const comm_;
  const std::vector<GradientBucket> buckets_;  // in the order of their reduction
  const std::unique_ptr<train_internal::BucketRunner> runner_;
  const int64_t size_;
  bool in_step_ = false;
  size_t next_ = 0;                    // first bucket that has not been started
  std::map<int64_t, int64_t> marked_;  // begin -> end; ranges neither touch nor overlap
  absl::Status error_;
};

}  // namespace sparsebalance
