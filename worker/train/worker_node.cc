#include "worker/train/worker_node.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
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

}  // namespace

absl::StatusOr<WorkerNodeResult> RunWorkerNode(const WorkerNodeOptions& given,
                                               const StopSignal& stop) {
  WorkerNodeOptions options = given;
  SB_RETURN_IF_ERROR(CheckRanks(options));
  SB_ASSIGN_OR_RETURN(const data::IndexedDataset dataset,
                      data::IndexedDataset::Open(options.train.dataset_prefix));
  SB_RETURN_IF_ERROR(FillVocabulary(dataset, options.train));
  SB_RETURN_IF_ERROR(ChooseDevice(options.train, options.ranks.size(), options.log));
  SB_RETURN_IF_ERROR(FitTokenCap(options.train, options.ranks.size(), options.log));
  std::unique_ptr<WorkerMetrics> metrics;
  if (!options.metrics_listen.empty()) {
    SB_ASSIGN_OR_RETURN(metrics, WorkerMetrics::Serve(options.metrics_listen));
  }

  std::vector<std::unique_ptr<JobRun>> runs;
  for (const std::string& policy : options.policies) {
    SB_ASSIGN_OR_RETURN(std::unique_ptr<JobRun> run,
                        JobRun::Create(options, policy, &dataset, &stop));
    runs.push_back(std::move(run));
  }
  const bool holds_rank_0 =
      std::find(options.ranks.begin(), options.ranks.end(), 0u) != options.ranks.end();
  if (holds_rank_0 && options.profile_at_start && options.replay_plans.empty() &&
      runs.front()->session() != nullptr) {
    SB_RETURN_IF_ERROR(
        EnsureProfile(*runs.front()->session(), runs.front()->train(), dataset, options.log));
  }

  RunReport report;
  for (const std::string& policy : options.policies) report.AddPolicy(policy);
  std::ofstream steps_file;
  if (holds_rank_0 && !options.output_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.output_dir, error);
    steps_file.open(options.output_dir + "/steps.jsonl",
                    options.train.resume ? std::ios::app : std::ios::trunc);
    if (!steps_file) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write to the output folder ", options.output_dir));
    }
  }
  const auto on_step = [&](const std::string& policy, const StepRecord& record) {
    report.Add(policy, record);
    if (steps_file.is_open()) steps_file << FormatStepJson(policy, record) << std::flush;
    if (metrics != nullptr) metrics->Record(policy, record);
    if (options.on_step) options.on_step(policy, record);
  };

  RankThreads threads(options, runs, stop, on_step);
  const absl::StatusOr<WorkerNodeResult::End> end = threads.Run();
  const bool finished = end.ok() && *end == WorkerNodeResult::End::kFinished;
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
  if (holds_rank_0 && !options.output_dir.empty()) {
    SB_RETURN_IF_ERROR(
        WriteFile(options.output_dir + "/summary.json", FormatJson(result.summaries)));
  }
  return result;
}

}  // namespace sparsebalance
