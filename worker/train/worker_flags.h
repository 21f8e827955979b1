// The command line of sparsebalance-worker. Every flag can also stand in a TOML file given by
// --config, under its long name, or in the environment as SPARSEBALANCE_<NAME>; a flag wins over
// the environment, the environment over the file.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "worker/train/worker_node.h"

namespace sparsebalance {

struct WorkerFlags {
  WorkerNodeOptions node;
  std::string log_format = "text";  // text or json
  std::string log_level = "info";
  bool quiet = false;  // no progress, no table

  // Filled by Finish() from what the flags hold as text or numbers.
  std::string coverage_floor = "baseline";
  std::string paper_anchor = "mean";
  std::string search_effort = "normal";
  double plan_deadline_ms = 250;
  double collective_timeout_s = 300;
  double start_timeout_s = 0;
};

// `flags` outlives `app`.
void AddWorkerFlags(CLI::App& app, WorkerFlags& flags);

// The flags of the model's shape alone, as a group; for verbs that read a checkpoint.
void AddModelFlags(CLI::App& app, model::ModelConfig& model);

// Checks and converts; call after parsing. INVALID_ARGUMENT names the flag.
absl::Status FinishWorkerFlags(WorkerFlags& flags);

}  // namespace sparsebalance
