// The flags that describe the model, and where its first parameters come from.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "worker/model/config.h"

namespace sparsebalance {

// The flags of a model's shape, to tell which of them were given. The options belong to the app.
class ModelFlags {
 public:
  // `config` gets the values and outlives the app.
  void Add(CLI::App& group, model::ModelConfig& config);

  // Takes the shape from the Hugging Face folder. INVALID_ARGUMENT naming a flag that was given and
  // the field of config.json that contradicts it; errors of model_io::ReadHfConfig.
  absl::Status TakeFrom(const std::string& folder, model::ModelConfig& config) const;

 private:
  struct IntFlag {
    CLI::Option* option;
    const char* field;  // in config.json
    int model::ModelConfig::*member;
  };
  struct FloatFlag {
    CLI::Option* option;
    const char* field;
    float model::ModelConfig::*member;
  };
  std::vector<IntFlag> ints_;
  std::vector<FloatFlag> floats_;
  CLI::Option* tie_ = nullptr;
};

}  // namespace sparsebalance
