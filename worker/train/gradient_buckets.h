// The parts of GradientReducer: where buckets begin and end, and three ways to reduce one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/comm/communicator.h"

namespace sparsebalance {

// Elements [begin, end).
struct GradientBucket {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const GradientBucket&, const GradientBucket&) = default;
};

// Cuts [0, size) at the multiples of a bucket, so that each begins where the whole buffer's
// alignment allows; the last comes first and may be smaller. bucket_bytes >= 256.
std::vector<GradientBucket> CutGradients(int64_t size, size_t bucket_bytes);

namespace train_internal {

class BucketRunner {
 public:
  virtual ~BucketRunner() = default;
  BucketRunner(const BucketRunner&) = delete;
  BucketRunner& operator=(const BucketRunner&) = delete;

  // The bucket is ready on the compute stream; it need not be reduced on return. After an error of
  // an earlier bucket it does nothing and returns that.
  virtual absl::Status Start(const GradientBucket& bucket) = 0;
  // Returns once all buckets that were started are reduced, or with the first error.
  virtual absl::Status Finish() = 0;
  // The first error so far.
  virtual absl::Status error() const = 0;

 protected:
  BucketRunner() = default;
};

// The fastest way that both support.
absl::StatusOr<std::unique_ptr<BucketRunner>> CreateBucketRunner(Communicator* comm,
                                                                 kernels::Backend* backend,
                                                                 kernels::DeviceBuffer gradients,
                                                                 kernels::Stream* compute_stream);

}  // namespace train_internal
}  // namespace sparsebalance
