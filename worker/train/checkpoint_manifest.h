// manifest.json of a checkpoint: where training stands, the model's shape, and checksums.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/config.h"
#include "worker/train/carried_sequences.h"

namespace sparsebalance {

inline constexpr char kCheckpointManifestFile[] = "manifest.json";
inline constexpr char kCheckpointModelFile[] = "model.safetensors";
inline constexpr char kCheckpointOptimizerFile[] = "optimizer.safetensors";

// Where training stands; the authority on which sequences have been consumed.
struct TrainPosition {
  uint64_t next_step = 0;
  uint64_t epoch = 0;
  uint64_t offset = 0;           // sequences of the epoch consumed so far
  uint64_t optimizer_steps = 0;  // updates made; skipped steps make none
  uint64_t seed = 0;
  uint64_t dataset_fingerprint = 0;
  std::string model_class;
  // The whole config; checkpoints of versions that did not write it have model_class only.
  std::optional<model::ModelConfig> model;
  // Where only adapters are trained, and the checkpoint holds only them: the model under them.
  std::string base_model;                // folder
  uint64_t base_fingerprint = 0;         // RankCompute::BaseFingerprint
  std::vector<uint64_t> skipped_steps;   // consumed without an update: gradient not finite
  std::vector<CarriedSequence> carried;  // what look-ahead has exchanged, by place
};

struct CheckpointManifest {
  TrainPosition position;
  std::map<std::string, std::string> files;  // SHA-256 by name
};

std::string FormatManifest(const CheckpointManifest& manifest);

// DATA_LOSS where it is not JSON or lacks a field, UNIMPLEMENTED for a format of another version.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text);

// Of a checkpoint's folder; messages name the file.
absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& folder);

}  // namespace sparsebalance
