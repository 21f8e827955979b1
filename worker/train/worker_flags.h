// The command line of sparsebalance-worker. Every flag can also stand in a TOML file given by
// --config, under its long name, or in the environment as SPARSEBALANCE_<NAME>; a flag wins over
// the environment, the environment over the file.
#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "worker/train/fine_tuning_flags.h"
#include "worker/train/model_flags.h"
#include "worker/train/worker_node.h"

namespace sparsebalance {

struct WorkerFlags {
  WorkerNodeOptions node;
  std::string log_format = "text";  // text or json
  std::string log_level = "info";
  bool quiet = false;  // no progress, no table
  bool check_config = false;

  // The ranks of a node by its number: node_rank * ranks_per_node and those that follow.
  std::optional<uint32_t> node_rank;
  uint32_t ranks_per_node = 1;

  // Filled by Finish() from what the flags hold as text or numbers.
  std::string coverage_floor = "baseline";
  std::string paper_anchor = "mean";
  std::string search_effort = "normal";
  double plan_deadline_ms = 250;
  double collective_timeout_s = 300;
  double start_timeout_s = 0;
  std::string export_dtype = "fp32";
  ModelFlags model_flags;
  FineTuningFlags fine_tuning_flags;
  CLI::Option* block_tokens = nullptr;
};

// `flags` outlives `app`.
void AddWorkerFlags(CLI::App& app, WorkerFlags& flags);

// Checks and converts, and reads the config of --init-from; call after parsing, while the app
// lives. INVALID_ARGUMENT names the flag.
absl::Status FinishWorkerFlags(WorkerFlags& flags);

}  // namespace sparsebalance
