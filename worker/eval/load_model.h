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

struct LoadOptions {
  int block_tokens = 0;  // above 0: instead of the model's own
  std::string backend = "cpu";
  std::string precision = "auto";  // of activations: auto, fp32 or bf16, see device_choice.h
  int threads = 1;
  // Folder of the model that adapters are for, where it is not the one that they name.
  std::string base_model;
};

// `path` is one checkpoint (DIR/step-00000012), a store of them, of which the newest whole one is
// taken, a Hugging Face folder, or a folder of a PEFT adapter. The model's shape comes from there.
// NOT_FOUND where there is no model; FAILED_PRECONDITION for a checkpoint of a version that did not
// write the shape; INVALID_ARGUMENT where adapters of a checkpoint were trained on another model
// than the base; errors of model_io for a folder.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, const LoadOptions& options);

}  // namespace sparsebalance::eval
