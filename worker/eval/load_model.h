// A trained model, read back for evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/transformer.h"

namespace sparsebalance::eval {

struct LoadedModel {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<model::Transformer> model;  // destroyed before its backend
  std::string folder;                         // that it was read from
  std::optional<uint64_t> step;               // steps trained, of a checkpoint
};

// `path` is one checkpoint (DIR/step-00000012), a store of them, of which the newest whole one is
// taken, or a Hugging Face folder. The model's shape comes from there; block_tokens > 0 replaces
// its block size. NOT_FOUND where there is no model; FAILED_PRECONDITION for a checkpoint of a
// version that did not write the shape; errors of model_io for a folder.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, int block_tokens,
                                      const std::string& backend, int threads);

}  // namespace sparsebalance::eval
