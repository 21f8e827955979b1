#include "worker/train/worker_node.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "kernels/status_macros.h"
#include "worker/data/indexed_dataset.h"
#include "worker/train/device_choice.h"
#include "worker/train/file_util.h"
#include "worker/train/job_run.h"
#include "worker/train/startup_profile.h"
#include "worker/train/token_cap.h"
#include "worker/train/worker_metrics.h"

namespace sparsebalance {
namespace {

absl::Status CheckRanks(const WorkerNodeOptions& options) {
  const uint32_t world = options.train.parallelism.data();
  const std::set<uint32_t> unique(options.ranks.begin(), options.ranks.end());
  if (options.ranks.empty()) return absl::InvalidArgumentError("this node has no rank (--ranks)");
  if (unique.size() != options.ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks ", absl::StrJoin(options.ranks, ","), " names a rank twice"));
  }
  if (*unique.rbegin() >= world) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", *unique.rbegin(),
                                                   " does not exist: the job has ranks 0 to ",
                                                   world - 1, " (--data-parallel ", world, ")"));
  }
  if (options.coordinator.empty() && unique.size() != world) {
    return absl::InvalidArgumentError(
        absl::StrCat("standalone, this node must hold all ", world, " ranks, not ", unique.size(),
                     "; give a coordinator or --ranks for all of them"));
  }
  if (options.coordinator.empty() && options.replay_plans.empty() &&
      options.policies != std::vector<std::string>{"length"}) {
    return absl::InvalidArgumentError(
        "without a coordinator a node trains by --policy length, or by --replay-plans");
  }
  if (options.policies.empty()) return absl::InvalidArgumentError("--policy names no policy");
  if (std::set<std::string>(options.policies.begin(), options.policies.end()).size() !=
      options.policies.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--policy ", absl::StrJoin(options.policies, ","), " names one twice"));
  }
  if (options.block_steps == 0) return absl::InvalidArgumentError("--block-steps must be above 0");
  if (!options.replay_plans.empty() && options.policies.size() > 1) {
    return absl::InvalidArgumentError("--replay-plans replays one run: give one --policy, or none");
  }
  return absl::OkStatus();
}

// The ranks of a node as threads; the first error stops all of them.
class RankThreads {
 public:
  RankThreads(const WorkerNodeOptions& options, std::vector<std::unique_ptr<JobRun>>& runs,
              const StopSignal& stop,
              std::function<void(const std::string&, const StepRecord&)> on_step)
      : options_(options), runs_(runs), stop_(stop), on_step_(std::move(on_step)) {}

  absl::StatusOr<WorkerNodeResult::End> Run() {
    std::vector<std::thread> threads;
    for (size_t index = 0; index < options_.ranks.size(); ++index) {
      threads.emplace_back([this, index] {
        const absl::Status status = RankMain(index);
        if (!status.ok()) Fail(status);
      });
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return error_;
    return stopped_.load() ? WorkerNodeResult::End::kStopped : WorkerNodeResult::End::kFinished;
  }

 private:
  void Fail(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (error_.ok()) error_ = status;
    }
    for (const std::unique_ptr<JobRun>& run : runs_) run->Abort(status);
  }

  absl::Status RankMain(size_t index) {
    for (const std::unique_ptr<JobRun>& run : runs_) SB_RETURN_IF_ERROR(run->StartRank(index));
    std::vector<bool> finished(runs_.size(), false);
    while (std::find(finished.begin(), finished.end(), false) != finished.end()) {
      for (size_t r = 0; r < runs_.size(); ++r) {
        if (finished[r]) continue;
        SB_ASSIGN_OR_RETURN(const StepOutcome outcome, RunBlock(*runs_[r], index));
        if (outcome == StepOutcome::kStopped) {
          stopped_.store(true);
          // Every rank is here, so the other jobs' checkpoints are collective too.
          for (const std::unique_ptr<JobRun>& run : runs_) {
            SB_RETURN_IF_ERROR(run->trainer(index).SaveCheckpoint());
          }
          return absl::OkStatus();
        }
        if (outcome == StepOutcome::kFinished) {
          finished[r] = true;
          SB_RETURN_IF_ERROR(runs_[r]->trainer(index).SaveCheckpoint());
          SB_RETURN_IF_ERROR(runs_[r]->Export(index));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepOutcome> RunBlock(JobRun& run, size_t index) {
    Trainer& trainer = run.trainer(index);
    for (uint64_t i = 0; i < options_.block_steps; ++i) {
      SB_ASSIGN_OR_RETURN(const StepOutcome outcome, trainer.RunStep(stop_.requested()));
      if (outcome != StepOutcome::kTrained) return outcome;
      if (index == 0) on_step_(run.policy(), trainer.last_record());
    }
    return StepOutcome::kTrained;
  }

  const WorkerNodeOptions& options_;
  std::vector<std::unique_ptr<JobRun>>& runs_;
  const StopSignal& stop_;
  const std::function<void(const std::string&, const StepRecord&)> on_step_;
  std::atomic<bool> stopped_ = false;
  absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// The data set decides the vocabulary where the options leave it open.
absl::Status FillVocabulary(const data::IndexedDataset& dataset, TrainOptions& train) {
  if (train.model.vocab_size != 0) return absl::OkStatus();
  if (!dataset.metadata().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        train.dataset_prefix, " does not state its vocabulary (it has no .json file); ",
        "give --vocabulary-size"));
  }
  train.model.vocab_size = static_cast<int>(dataset.metadata()->vocabulary_size);
  return absl::OkStatus();
}

// A peer is gone, or another process has taken its place: what a new start would mend.
bool LostPeer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

// A node from its first join to its last step: attempts, each from the newest checkpoint.
class NodeRun {
 public:
  NodeRun(const WorkerNodeOptions& options, const data::IndexedDataset& dataset,
          const StopSignal& stop)
      : options_(options), dataset_(dataset), stop_(stop) {}

  absl::StatusOr<WorkerNodeResult> Run() {
    if (!options_.metrics_listen.empty()) {
      SB_ASSIGN_OR_RETURN(metrics_, WorkerMetrics::Serve(options_.metrics_listen, options_.version,
                                                         options_.train.backend));
      const std::string host =
          options_.metrics_listen.substr(0, options_.metrics_listen.rfind(':'));
      options_.log(absl::StrCat("metrics on http://", host, ":", metrics_->port(), "/metrics"));
    }
    int rejoins = 0;
    absl::Duration pause = options_.rejoin_pause;
    while (true) {
      const absl::StatusOr<WorkerNodeResult> result = Attempt();
      if (result.ok() || !LostPeer(result.status()) || !begun_) return result;
      if (progressed_) {
        rejoins = 0;
        pause = options_.rejoin_pause;
      }
      if (!MayRejoin(result.status(), rejoins)) return result;
      options_.log(absl::StrCat("a peer was lost (", result.status().message(),
                                "); joining again from the newest checkpoint, attempt ", ++rejoins,
                                " of ", options_.max_rejoins));
      for (const std::string& policy : options_.policies) {
        if (metrics_ != nullptr) metrics_->Rejoined(JobOf(options_, policy), policy);
      }
      if (stop_.WaitFor(pause)) return result;
      pause = std::min(pause * 2, absl::Minutes(1));
      options_.train.resume = true;
      // The peers that are left must be able to tell this life of the process from the last.
      options_.session.incarnation = 0;
      options_.session.previous_incarnation = incarnation_;
    }
  }

 private:
  bool MayRejoin(const absl::Status& why, int rejoins) const {
    if (stop_.requested() || options_.coordinator.empty() || options_.max_rejoins == 0)
      return false;
    if (evicted_) {
      options_.log(absl::StrCat("an operator took this node out of the job (", why.message(),
                                "); this process does not join again, another may"));
      return false;
    }
    if (options_.train.checkpoint_dir.empty()) {
      options_.log(absl::StrCat("a peer was lost (", why.message(),
                                "), and without --checkpoint-dir there is nothing to go on from"));
      return false;
    }
    return rejoins < options_.max_rejoins;
  }

  absl::Status OpenOutput() {
    if (!HoldsRank0() || options_.output_dir.empty()) return absl::OkStatus();
    std::error_code error;
    std::filesystem::create_directories(options_.output_dir, error);
    steps_file_ = std::ofstream(options_.output_dir + "/steps.jsonl",
                                options_.train.resume ? std::ios::app : std::ios::trunc);
    if (steps_file_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write to the output folder ", options_.output_dir));
  }

  // Whoever evicts a node names a job, so the lowest of its jobs' incarnations covers all of them.
  void NoteIncarnations(const std::vector<std::unique_ptr<JobRun>>& runs) {
    incarnation_ = 0;
    for (const std::unique_ptr<JobRun>& run : runs) {
      if (run->session() == nullptr) continue;
      const uint64_t own = run->session()->incarnation();
      incarnation_ = incarnation_ == 0 ? own : std::min(incarnation_, own);
      evicted_ = evicted_ || run->session()->evicted();
    }
  }

  bool HoldsRank0() const {
    return std::find(options_.ranks.begin(), options_.ranks.end(), 0u) != options_.ranks.end();
  }

  absl::StatusOr<WorkerNodeResult> Attempt() {
    begun_ = false;
    progressed_ = false;
    std::vector<std::unique_ptr<JobRun>> runs;
    for (const std::string& policy : options_.policies) {
      SB_ASSIGN_OR_RETURN(std::unique_ptr<JobRun> run,
                          JobRun::Create(options_, policy, &dataset_, &stop_));
      runs.push_back(std::move(run));
    }
    if (std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run->AllDone(); })) {
      options_.log("all steps were done before; nothing is left to train");
      return WorkerNodeResult();
    }
    if (HoldsRank0() && options_.profile_at_start && options_.replay_plans.empty() &&
        runs.front()->session() != nullptr) {
      SB_RETURN_IF_ERROR(
          EnsureProfile(*runs.front()->session(), runs.front()->train(), dataset_, options_.log));
    }
    SB_RETURN_IF_ERROR(OpenOutput());
    // As after a new start, the report begins where this attempt does.
    RunReport report;
    for (const std::string& policy : options_.policies) report.AddPolicy(policy);
    const auto on_step = [&](const std::string& policy, const StepRecord& record) {
      // A step that was trained before the peer was lost is no progress: it may be what kills it.
      uint64_t& next = next_step_[policy];
      if (record.step >= next) {
        next = record.step + 1;
        progressed_ = true;
      }
      report.Add(policy, record);
      if (steps_file_.is_open()) steps_file_ << FormatStepJson(policy, record) << std::flush;
      if (metrics_ != nullptr) metrics_->Record(JobOf(options_, policy), policy, record);
      if (options_.on_step) options_.on_step(policy, record);
    };
    begun_ = true;
    RankThreads threads(options_, runs, stop_, on_step);
    const absl::StatusOr<WorkerNodeResult::End> end = threads.Run();
    const bool finished = end.ok() && *end == WorkerNodeResult::End::kFinished;
    NoteIncarnations(runs);
    for (const std::unique_ptr<JobRun>& run : runs) {
      run->Leave(!end.ok()  ? std::string(end.status().message())
                 : finished ? "finished"
                            : "stopped",
                 finished);
    }
    if (!end.ok()) return end.status();
    for (const std::unique_ptr<JobRun>& run : runs) SB_RETURN_IF_ERROR(run->WriteCoverage());

    WorkerNodeResult result;
    result.end = *end;
    result.summaries = report.Summaries();
    if (HoldsRank0() && !options_.output_dir.empty()) {
      SB_RETURN_IF_ERROR(
          WriteFile(options_.output_dir + "/summary.json", FormatJson(result.summaries)));
    }
    return result;
  }

  WorkerNodeOptions options_;
  const data::IndexedDataset& dataset_;
  const StopSignal& stop_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::ofstream steps_file_;
  bool begun_ = false;        // the attempt has come as far as joining
  bool progressed_ = false;   // the attempt has trained a step that none before it had
  uint64_t incarnation_ = 0;  // of the attempt, the lowest of its jobs
  bool evicted_ = false;      // by an operator, from one of its jobs
  std::map<std::string, uint64_t> next_step_;  // by policy, over all attempts
};

}  // namespace

absl::Status CheckWorkerNode(const WorkerNodeOptions& options) {
  SB_RETURN_IF_ERROR(CheckRanks(options));
  for (const std::string& policy : options.policies) {
    TrainOptions train = options.train;
    train.plan.set_policy(policy);
    SB_RETURN_IF_ERROR(ValidateTrainOptions(train));
  }
  if (options.coordinator.empty()) return absl::OkStatus();
  return LoadChannelSecurity(options.coordinator, options.security, options.insecure).status();
}

absl::StatusOr<WorkerNodeResult> RunWorkerNode(const WorkerNodeOptions& given,
                                               const StopSignal& stop) {
  WorkerNodeOptions options = given;
  SB_RETURN_IF_ERROR(CheckRanks(options));
  SB_ASSIGN_OR_RETURN(const data::IndexedDataset dataset,
                      data::IndexedDataset::Open(options.train.dataset_prefix));
  SB_RETURN_IF_ERROR(FillVocabulary(dataset, options.train));
  SB_RETURN_IF_ERROR(ChooseDevice(options.train, options.ranks.size(), options.log));
  SB_RETURN_IF_ERROR(FitTokenCap(options.train, options.ranks.size(), options.log));
  if (!options.coordinator.empty()) {
    SB_ASSIGN_OR_RETURN(
        options.session.tls,
        LoadChannelSecurity(options.coordinator, options.security, options.insecure));
  }
  return NodeRun(options, dataset, stop).Run();
}

}  // namespace sparsebalance
