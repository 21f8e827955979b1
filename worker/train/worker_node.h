// A node of a job: registers with the coordinator, brings up its ranks (a thread each), and trains.
//
// With several policies it trains one model a policy, side by side: blocks of steps in turn, each
// with a job, model state and position of its own, so that the noise of a machine falls on all of
// them alike and their measurements can be compared.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/channel_credentials.h"
#include "worker/client/node_session.h"
#include "worker/client/stop_signal.h"
#include "worker/train/run_report.h"
#include "worker/train/train_options.h"

namespace sparsebalance {

struct WorkerNodeOptions {
  TrainOptions train;  // plan.policy is replaced by each of `policies`
  std::vector<std::string> policies = {"sparsebalance"};
  uint64_t block_steps = 4;  // steps of a policy before the next one's turn

  // Empty: standalone, without a coordinator; this node then holds every rank and trains by the
  // `length` plans that it computes itself, or by a record.
  std::string coordinator = "127.0.0.1:7070";
  ChannelSecurity security;  // without a CA: plaintext
  bool insecure = false;     // plaintext also to other machines
  NodeSessionOptions session;
  std::vector<uint32_t> ranks;  // global ranks of this node, at least one

  // Times in a row that the node, having lost a peer, joins again from the newest checkpoint
  // without getting further than before; 0: it ends instead. Needs a folder of checkpoints.
  int max_rejoins = 5;
  // Before the first of them; doubled for each that follows, at most a minute.
  absl::Duration rejoin_pause = absl::Seconds(1);

  std::string bind_host = "127.0.0.1";  // where this node's ranks listen for the others
  std::string interface;                // or: the network interface to listen on

  // Gets plans/, steps.jsonl and summary.json; empty: nothing is written.
  std::string output_dir = "sparsebalance-output";
  std::vector<std::string> replay_plans;  // files or folders; empty: plans of the coordinator
  // Measure a latency profile at start where the coordinator has none for this device and model.
  bool profile_at_start = true;

  std::string metrics_listen;       // host:port of this worker's /metrics; empty: none
  std::string version = "unknown";  // of the program, for the metrics

  std::function<void(const std::string&)> log = [](const std::string&) {};
  // Called on the thread of this node's first rank, for every step of every policy.
  std::function<void(const std::string& policy, const StepRecord&)> on_step;

  // For tests: wraps the source of plans of a policy.
  std::function<std::unique_ptr<PlanSource>(PlanSource*)> wrap_plan_source;
};

struct WorkerNodeResult {
  enum class End { kFinished, kStopped };
  End end = End::kFinished;
  std::vector<PolicySummary> summaries;
};

// What can be said of the options before the data set is there: INVALID_ARGUMENT names the flag.
// Reads the certificates; asks neither the coordinator nor a GPU.
absl::Status CheckWorkerNode(const WorkerNodeOptions& options);

// Blocks until the run is over. Errors, by code:
//   INVALID_ARGUMENT, NOT_FOUND, DATA_LOSS  bad options, data or checkpoint
//   ALREADY_EXISTS        the coordinator has another job, node or rank in this place
//   UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED
//                         a peer was lost or replaced, and joining again from the newest checkpoint
//                         was not possible or did not help
//   FAILED_PRECONDITION   the ranks do not agree (other data, another version)
//   OUT_OF_RANGE          gradients were not finite too often in a row
//   RESOURCE_EXHAUSTED    memory ran out
//   CANCELLED             stopped before training began
absl::StatusOr<WorkerNodeResult> RunWorkerNode(const WorkerNodeOptions& given,
                                               const StopSignal& stop);

}  // namespace sparsebalance
