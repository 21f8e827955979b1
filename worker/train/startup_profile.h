// A latency profile measured when a job starts, so that the first plans already fit the machine.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsebalance/v1/profile.pb.h"
#include "worker/client/node_session.h"
#include "worker/data/indexed_dataset.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

struct ProfileRange {
  uint64_t longest_tokens = 1;  // sequences of up to so many
  double seconds = 4;           // about; a few shapes are always measured
  bool wide = false;  // budgets from the own block to all blocks, instead of the usual ones
};

// Times single sequences of several lengths and budgets on this machine's backend and fits the
// latency model to them. Needs no data: time does not depend on what the tokens are.
absl::StatusOr<v1::LatencyProfile> MeasureProfile(const TrainOptions& options,
                                                  const ProfileRange& range);

// Measures and puts a profile where the coordinator has none for this device and model. A
// coordinator that does not answer, or refuses, is logged only: plans then start from defaults.
absl::Status EnsureProfile(NodeSession& session, const TrainOptions& options,
                           const data::IndexedDataset& dataset,
                           const std::function<void(const std::string&)>& log);

}  // namespace sparsebalance
