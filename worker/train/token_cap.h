// The token cap of plans from a rank's memory: no plan may ask for more than a rank has.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

// Lowers plan.max_tokens_per_micro_batch to what options.memory_limit_bytes holds by the memory
// model (worker/model/memory_model.h), and says so in the log. Without a limit the cap stays,
// and the log warns where the machine's memory, shared by `ranks` ranks, may not hold it.
// All nodes of a job must use the same limit: the cap is part of the job's spec.
// RESOURCE_EXHAUSTED where the model itself does not fit.
absl::Status FitTokenCap(TrainOptions& options, size_t ranks,
                         const std::function<void(const std::string&)>& log);

}  // namespace sparsebalance
