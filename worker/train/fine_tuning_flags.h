// The flags of fine-tuning: low-rank adapters, dropout, and weight decay by parameter.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

class FineTuningFlags {
 public:
  // `train` gets the values and outlives the app.
  void Add(CLI::App& group, TrainOptions& train);

  // Converts what is given as text, and takes rank, alpha and targets from the PEFT folder of
  // --lora-init-from. INVALID_ARGUMENT naming the flag; errors of model_io::ReadAdapterConfig.
  absl::Status Finish(TrainOptions& train) const;

 private:
  std::vector<CLI::Option*> lora_shape_;
  std::string lora_targets_ = "q_proj,v_proj";
  float lora_dropout_ = 0;
  std::vector<std::string> weight_decay_groups_;
};

}  // namespace sparsebalance
