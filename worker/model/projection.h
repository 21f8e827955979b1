// The linear maps of a layer: dense weights, low-rank adapters on top of them where the model has
// some, and the dropout that goes with both.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/model/parameters.h"

namespace sparsebalance::model {

// Dropout at one place of the model. Inactive where the rate is 0 or there are no keys.
struct Dropout {
  kernels::DeviceSpan<const uint64_t> keys;  // [tokens]
  float rate = 0;
  uint32_t site = 0;

  bool active() const { return rate > 0 && !keys.empty(); }
};

// x [tokens, columns] = drop(x); nothing where it is inactive.
absl::Status DropInPlace(kernels::Backend* backend, const Dropout& dropout, int64_t tokens,
                         int64_t columns, DeviceBuffer x);

struct ProjectionShape {
  int64_t tokens, inputs, outputs;
  int adapter_rank = 0;
  float adapter_scale = 1;
  Dropout adapter_dropout;  // of what adapters read
};

// y [tokens, outputs] = or += x [tokens, inputs] W^T + bias + scale * (drop(x) A^T) B^T.
absl::Status Project(kernels::Backend* backend, const ProjectionShape& shape,
                     const ProjectionWeights& weights, ConstDeviceBuffer x, bool accumulate,
                     DeviceBuffer y);

// x_grad = the gradient of x, and adds to those of the weights as far as they are trained.
absl::Status ProjectBackward(kernels::Backend* backend, const ProjectionShape& shape,
                             const ProjectionWeights& weights, const ProjectionWeights& grads,
                             ConstDeviceBuffer x, ConstDeviceBuffer y_grad, DeviceBuffer x_grad);

// What a branch of the residual stream ends with: stream += drop(x W^T ...).
absl::Status ProjectIntoStream(kernels::Backend* backend, const ProjectionShape& shape,
                               const ProjectionWeights& weights, const Dropout& dropout,
                               ConstDeviceBuffer x, DeviceBuffer stream);
// x_grad = the gradient of x, where stream_grad is that of the stream.
absl::Status ProjectIntoStreamBackward(kernels::Backend* backend, const ProjectionShape& shape,
                                       const ProjectionWeights& weights,
                                       const ProjectionWeights& grads, const Dropout& dropout,
                                       ConstDeviceBuffer x, ConstDeviceBuffer stream_grad,
                                       DeviceBuffer x_grad);

// Largest temporary memory of the functions above, in bytes: of the first and third, and of the
// other two. `dropout` as given to the latter of each; without it those of Project.
struct ProjectionScratch {
  int64_t forward = 0, backward = 0;
};
ProjectionScratch ScratchOf(const kernels::Backend& backend, const ProjectionShape& shape,
                            int adapters, bool base_is_trained, bool stream_dropout);

}  // namespace sparsebalance::model
