// A trained model, read back for evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/transformer.h"

namespace sparsebalance::eval {

struct LoadedModel {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<model::Transformer> model;  // destroyed before its backend
  std::string folder;                         // of the checkpoint
  uint64_t step = 0;                          // steps trained
};

// `path` is one checkpoint (DIR/step-00000012) or a store of them, of which the newest whole one is
// taken. NOT_FOUND where there is none; INVALID_ARGUMENT where it is of another shape than
// `config`.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const model::ModelConfig& config,
                                      const std::string& backend, int threads);

}  // namespace sparsebalance::eval
