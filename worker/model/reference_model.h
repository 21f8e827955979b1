#pragma once

// The whole model in double, composed of the plain reference ops: what tests of the transformer
// compare with. Names of parameters as in Hugging Face Qwen2.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/reference.h"
#include "worker/model/config.h"
#include "worker/model/micro_batch.h"

namespace sparsebalance::model {

using ReferenceParameters = std::map<std::string, kernels::reference::Tensor>;

// Blocks that each layer's queries select, to be held fixed while parameters are varied.
using ReferenceSelections = std::vector<kernels::reference::Selection>;

// Sum of the losses of the batch. Where `selections` is empty it is filled by routing with the
// batch's budgets, else it is used.
double ReferenceLoss(const ModelConfig& config, const ReferenceParameters& parameters,
                     const MicroBatch& batch, ReferenceSelections* selections);

}  // namespace sparsebalance::model
