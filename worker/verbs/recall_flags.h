// Flags of the recall task, which the verbs that generate it share.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "worker/eval/recall_task.h"

namespace sparsebalance {

struct RecallFlags {
  eval::RecallTaskOptions task;
  std::string distances = eval::DistancesText(task.distances);
};

// `flags` outlives `app`.
void AddRecallFlags(CLI::App& app, RecallFlags& flags);

// Checks and converts; call after parsing.
absl::Status FinishRecallFlags(RecallFlags& flags);

}  // namespace sparsebalance
