#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/parameters.h"

namespace sparsebalance::model {

// Parameters whose name fits a pattern in the way of a shell (fnmatch: *, ?, [...]).
struct WeightDecayGroup {
  std::string pattern;
  float value = 0;
};

struct AdamWOptions {
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;  // of matrices; that of norm weights and biases is 0
  // Instead of it; the first group that fits counts.
  std::vector<WeightDecayGroup> weight_decay_groups;

  // INVALID_ARGUMENT unless 0 <= beta < 1, epsilon > 0, and weight decays are finite and >= 0.
  absl::Status Validate() const;
};

// What a checkpoint keeps. m and v have the layout of the arena of gradients.
struct AdamWState {
  int64_t step = 0;  // updates done
  std::vector<float> m, v;
};

// Weight decay of each parameter, in the order of the store; 0 where it is frozen. INVALID_ARGUMENT
// naming a group that fits no trained parameter: nobody wants to find out after a week that a
// pattern was misspelled.
absl::StatusOr<std::vector<float>> WeightDecays(const AdamWOptions& options,
                                                const ParameterStore& parameters);

// AdamW over the trained parameters of a model. The store and the backend must outlive it.
class AdamW {
 public:
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(const AdamWOptions& options,
                                                       ParameterStore* parameters,
                                                       kernels::Backend* backend);

  // L2 norm of all gradients, in a fixed order; NaN or infinite where a gradient is.
  absl::StatusOr<double> GradNorm();
  // One update with gradients times `grad_scale`; gradients are left as they are.
  absl::Status Step(double learning_rate, double grad_scale);

  int64_t step() const { return step_; }
  absl::StatusOr<AdamWState> ExportState() const;
  // INVALID_ARGUMENT where m or v are not of this model's size.
  absl::Status ImportState(const AdamWState& state);

 private:
  AdamW(const AdamWOptions& options, ParameterStore* parameters, kernels::Backend* backend)
      : options_(options), parameters_(parameters), backend_(backend) {}

  // Neighbouring parameters with the same decay: one kernel call each.
  struct Run {
    int64_t begin, count;
    float weight_decay;
  };

  AdamWOptions options_;
  ParameterStore* parameters_;
  kernels::Backend* backend_;
  int64_t step_ = 0;
  kernels::DeviceArray<float> m_, v_;
  kernels::DeviceArray<double> norm_;
  std::vector<Run> runs_;
};

// Factor on gradients that brings their norm to at most max_norm; 1 where max_norm <= 0 (off).
double ClipScale(double norm, double max_norm);

}  // namespace sparsebalance::model
