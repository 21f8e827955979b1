// Checkpoints: DIR/step-00000012/ with
//   manifest.json              position in the data, the model's shape, and a SHA-256 of the
//   tensors model.safetensors          parameters optimizer.safetensors      AdamW's moments,
//   `NAME.m` and `NAME.v` coverage-rank-R.bin        coverage measured by rank R (optional
//   knowledge)
// A checkpoint is written to a folder of another name, synced and renamed: one that is there is
// whole. DIR is shared by all nodes of the job (one machine, or a shared file system).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/train/checkpoint_manifest.h"
#include "worker/train/coverage_notes.h"
#include "worker/train/tensor_file.h"

namespace sparsebalance {

struct Checkpoint {
  std::string folder;
  TrainPosition position;
  TensorFile model;
  TensorFile optimizer;
  std::vector<std::string> coverage_files;
};

class CheckpointStore {
 public:
  // Keeps the newest `kept` (>= 1) checkpoints.
  CheckpointStore(std::string folder, uint32_t kept, std::function<void(const std::string&)> log);

  // Collective over the job's ranks: rank 0 writes the tensors (the views are read there only),
  // every rank its notes. All ranks return the same code; on an error the checkpoints before it are
  // untouched.
  absl::Status Save(Communicator& comm, const TrainPosition& position,
                    const std::vector<TensorView>& model, const std::vector<TensorView>& optimizer,
                    const CoverageNotes& notes);

  // The newest checkpoint that is whole; damaged ones are named in the log and passed over. Empty
  // where there is none; DATA_LOSS where all of them are damaged.
  absl::StatusOr<std::optional<Checkpoint>> LoadNewest() const;
  // The one in `folder`, which need not be of this store. DATA_LOSS where it is damaged.
  absl::StatusOr<Checkpoint> Load(const std::string& folder) const;

 private:
  absl::Status WriteTensors(const std::string& folder, const TrainPosition& position,
                            const std::vector<TensorView>& model,
                            const std::vector<TensorView>& optimizer) const;
  void RemoveOld() const;
  std::vector<std::string> Folders() const;  // newest first

  const std::string folder_;
  const uint32_t kept_;
  const std::function<void(const std::string&)> log_;
};

}  // namespace sparsebalance
