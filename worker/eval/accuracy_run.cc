#include "worker/eval/accuracy_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/coordinator_server.h"
#include "kernels/status_macros.h"
#include "worker/eval/evaluator.h"
#include "worker/eval/load_model.h"
#include "worker/train/worker_node.h"

namespace sparsebalance::eval {
namespace {

// Held-out sequences come from other seeds than any training set of these runs.
constexpr uint64_t kHeldOutSeed = uint64_t{1} << 40;

// What the ranks of one job measured.
class Measurements {
 public:
  void Add(const v1::RankTelemetry& telemetry) {
    double milliseconds = 0;
    absl::MutexLock lock(&mutex_);
    for (const v1::MicroBatchTelemetry& micro_batch : telemetry.micro_batches()) {
      milliseconds += micro_batch.forward_cpu_ms() + micro_batch.backward_cpu_ms();
      for (const v1::SequenceTelemetry& sequence : micro_batch.sequences()) AddBudgets(sequence);
    }
    std::vector<double>& steps = rank_seconds_[telemetry.rank()];
    if (steps.size() <= telemetry.step()) steps.resize(telemetry.step() + 1, 0.0);
    steps[telemetry.step()] += milliseconds / 1e3;
  }

  // The slowest rank of every step, summed up.
  double Seconds() {
    absl::MutexLock lock(&mutex_);
    std::vector<double> slowest;
    for (const auto& [rank, steps] : rank_seconds_) {
      slowest.resize(std::max(slowest.size(), steps.size()), 0.0);
      for (size_t s = 0; s < steps.size(); ++s) slowest[s] = std::max(slowest[s], steps[s]);
    }
    return std::accumulate(slowest.begin(), slowest.end(), 0.0);
  }

  double MeanBudget() {
    absl::MutexLock lock(&mutex_);
    return layers_ > 0 ? budget_sum_ / layers_ : 0;
  }
  // Share of sequences whose planned budget is not `budget`, of those that are long enough for it.
  double Moved(uint32_t budget, uint64_t block_tokens) {
    absl::MutexLock lock(&mutex_);
    double moved = 0;
    double all = 0;
    for (const auto& [key, count] : planned_) {
      const auto& [tokens, planned] = key;
      if ((tokens + block_tokens - 1) / block_tokens < budget) continue;
      all += count;
      if (planned != budget) moved += count;
    }
    return all > 0 ? moved / all : 0;
  }

 private:
  void AddBudgets(const v1::SequenceTelemetry& sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const uint32_t budget : sequence.realized_budget_blocks()) {
      budget_sum_ += budget;
      layers_ += 1;
    }
    planned_[{sequence.tokens(), sequence.planned_budget_blocks()}] += 1;
  }

  absl::Mutex mutex_;
  std::map<uint32_t, std::vector<double>> rank_seconds_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, uint32_t>, double> planned_ ABSL_GUARDED_BY(mutex_);
  double budget_sum_ ABSL_GUARDED_BY(mutex_) = 0;
  double layers_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Plans and reports go to the coordinator as ever; what is reported is noted as well.
class ListeningPlans : public PlanSource {
 public:
  // With `cpu_time` the coordinator is told CPU times, which are what devices of their own would
  // report.
  ListeningPlans(PlanSource* plans, Measurements* notes, bool cpu_time)
      : plans_(plans), notes_(notes), cpu_time_(cpu_time) {}
  void Request(const v1::GlobalBatch& batch) override { plans_->Request(batch); }
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override {
    return plans_->Wait(step, deadline);
  }
  bool CoordinatorAway() override { return plans_->CoordinatorAway(); }
  void Report(v1::RankTelemetry telemetry) override {
    notes_->Add(telemetry);
    for (v1::MicroBatchTelemetry& micro_batch : *telemetry.mutable_micro_batches()) {
      if (!cpu_time_) break;
      micro_batch.set_forward_ms(micro_batch.forward_cpu_ms());
      micro_batch.set_backward_ms(micro_batch.backward_cpu_ms());
    }
    plans_->Report(std::move(telemetry));
  }
  void ReportConsumed(v1::ConsumedBatch consumed) override {
    plans_->ReportConsumed(std::move(consumed));
  }
  absl::Status Health() override { return plans_->Health(); }

 private:
  PlanSource* plans_;
  Measurements* notes_;
  const bool cpu_time_;
};

// Two layers of width 64 are enough for the task. The output matrix is apart from the embedding and
// the initial matrices are 1/sqrt(64): both let attention sharpen within the first hundred steps.
model::ModelConfig ModelOf(const RecallTaskOptions& task) {
  model::ModelConfig config;
  config.vocab_size = static_cast<int>(task.VocabularySize());
  config.hidden_size = 64;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.intermediate_size = 128;
  config.rope_theta = 1e6F;
  config.initializer_range = 0.125F;
  config.tie_embeddings = false;
  config.block_tokens = static_cast<int>(task.block_tokens);
  return config;
}

constexpr uint64_t kWarmupSteps = 20;

TrainOptions TrainOptionsOf(const AccuracyRunOptions& options, uint64_t seed) {
  TrainOptions train;
  train.job.set_namespace_("accuracy");
  train.parallelism.set_data(options.ranks);
  train.parallelism.set_pipeline(1);
  train.parallelism.set_sequence(1);
  train.plan.set_data_parallel_size(options.ranks);
  train.plan.set_pipeline_parallel_size(1);
  train.plan.set_block_tokens(static_cast<uint32_t>(options.task.block_tokens));
  train.plan.set_base_budget_blocks(options.base_budget_blocks);
  train.plan.set_min_budget_blocks(1);
  *train.plan.mutable_coverage_floor() = options.coverage_floor;
  train.plan.set_max_tokens_per_micro_batch(options.max_tokens_per_micro_batch);
  train.plan.set_padding_multiple(1);
  train.plan.set_coverage_guard(0.1);
  train.model = ModelOf(options.task);
  train.optimizer.learning_rate = options.learning_rate;
  train.optimizer.min_learning_rate = options.learning_rate / 10;
  train.optimizer.warmup_steps = kWarmupSteps;
  train.dataset_prefix = absl::StrCat(options.folder, "/data-", seed);
  train.global_batch_size = options.global_batch_size;
  train.seed = seed;
  train.backend = "cpu";
  // A step must not be trained by the fallback only because this machine is busy.
  train.plan_deadline = absl::Seconds(30);
  return train;
}

// A model as a run leaves it behind.
struct TrainedModel {
  ModelResult result;
  double coverage = 0;  // mean over steps
  double budget = 0;
  double moved = 0;
};

// Trains one model a policy, side by side, and asks them.
class SeedRun {
 public:
  SeedRun(const AccuracyRunOptions& options, uint64_t seed, std::string coordinator)
      : options_(options), seed_(seed), coordinator_(std::move(coordinator)) {}

  // `name` is that of the job and of its folder.
  absl::StatusOr<std::vector<TrainedModel>> Train(const std::string& name,
                                                  const std::vector<std::string>& policies,
                                                  uint64_t steps) {
    WorkerNodeOptions node;
    node.train = TrainOptionsOf(options_, seed_);
    node.train.job.set_name(absl::StrCat(name, "-", seed_));
    node.train.steps = steps;
    node.output_dir = absl::StrCat(options_.folder, "/", name, "-", seed_);
    node.train.checkpoint_dir = node.output_dir + "/checkpoints";
    node.coordinator = coordinator_;
    node.session.address = coordinator_;
    node.session.node_id = "node";
    node.policies = policies;
    node.ranks.resize(options_.ranks);
    std::iota(node.ranks.begin(), node.ranks.end(), 0U);

    // Sources are wrapped in the order of the policies, one a job.
    std::vector<std::unique_ptr<Measurements>> measured;
    node.wrap_plan_source = [&](PlanSource* plans) -> std::unique_ptr<PlanSource> {
      measured.push_back(std::make_unique<Measurements>());
      return std::make_unique<ListeningPlans>(plans, measured.back().get(),
                                              options_.planner_sees_cpu_time);
    };
    const StopSignal stop;
    SB_ASSIGN_OR_RETURN(const WorkerNodeResult run, RunWorkerNode(node, stop));

    std::vector<TrainedModel> models;
    for (size_t p = 0; p < policies.size(); ++p) {
      const PolicySummary& summary = run.summaries[p];
      options_.log(absl::StrFormat("seed %d, %s: %d steps, loss %.3f -> %.3f, %d by the fallback",
                                   seed_, summary.policy, summary.steps, summary.loss_first,
                                   summary.loss_last, summary.fallback_steps));
      TrainedModel& model = models.emplace_back();
      // With several policies each has a folder of its own.
      const std::string folder = policies.size() > 1 ? node.train.checkpoint_dir + "/" + policies[p]
                                                     : node.train.checkpoint_dir;
      SB_ASSIGN_OR_RETURN(model.result.accuracy, Ask(folder, node.train));
      model.result.steps = steps;
      model.result.seconds = measured[p]->Seconds();
      model.coverage = summary.coverage_mean;
      model.budget = measured[p]->MeanBudget();
      model.moved = measured[p]->Moved(options_.base_budget_blocks,
                                       static_cast<uint64_t>(options_.task.block_tokens));
    }
    return models;
  }

 private:
  absl::StatusOr<Accuracy> Ask(const std::string& folder, const TrainOptions& train) const {
    SB_ASSIGN_OR_RETURN(const LoadedModel loaded,
                        LoadModel(folder, {.backend = train.backend, .threads = 2}));
    RecallTaskOptions held_out = options_.task;
    held_out.seed = kHeldOutSeed + seed_;
    // All models answer under the fixed budget: the comparison is about training.
    SB_ASSIGN_OR_RETURN(
        const RecallResult recall,
        EvaluateRecall(ScoreBy(*loaded.model), held_out, options_.held_out_sequences,
                       {.budget_blocks = options_.base_budget_blocks}));
    Accuracy accuracy{.all = recall.total.accuracy(),
                      .beyond_own_block = recall.beyond_own_block.accuracy()};
    for (const Bucket& bucket : recall.buckets) {
      accuracy.by_distance.push_back(bucket.tally.accuracy());
    }
    return accuracy;
  }

  const AccuracyRunOptions& options_;
  const uint64_t seed_;
  const std::string coordinator_;
};

}  // namespace

absl::StatusOr<SeedResult> RunAccuracySeed(const AccuracyRunOptions& options, uint64_t seed) {
  if (options.steps == 0) return absl::InvalidArgumentError("there must be a step");
  RecallTaskOptions task = options.task;
  task.seed = seed;
  // No sequence comes twice: what is measured is not what was learned by heart.
  SB_RETURN_IF_ERROR(WriteRecallDataset(task, options.steps * options.global_batch_size,
                                        TrainOptionsOf(options, seed).dataset_prefix,
                                        /*overwrite=*/true));
  ServerConfig server_config;
  server_config.listen = {"127.0.0.1", 0};
  SB_ASSIGN_OR_RETURN(const std::unique_ptr<CoordinatorServer> server,
                      CoordinatorServer::Start(server_config));
  SeedRun run(options, seed, absl::StrCat("127.0.0.1:", server->grpc_address().port));

  SB_ASSIGN_OR_RETURN(
      const std::vector<TrainedModel> models,
      run.Train("steps", {options.fixed_policy, options.dynamic_policy}, options.steps));
  const TrainedModel& fixed = models[0];
  const TrainedModel& dynamic = models[1];
  SeedResult result;
  result.seed = seed;
  result.fixed_equal_steps = result.fixed_equal_time = fixed.result;
  result.dynamic_equal_steps = result.dynamic_equal_time = dynamic.result;
  result.fixed_coverage = fixed.coverage;
  result.dynamic_coverage = dynamic.coverage;
  result.fixed_budget = fixed.budget;
  result.dynamic_budget = dynamic.budget;
  result.sequences_moved = dynamic.moved;

  const bool fixed_is_slower = fixed.result.seconds > dynamic.result.seconds;
  const double share = fixed_is_slower ? dynamic.result.seconds / fixed.result.seconds
                                       : fixed.result.seconds / dynamic.result.seconds;
  const auto steps =
      static_cast<uint64_t>(std::llround(share * static_cast<double>(options.steps)));
  if (steps == options.steps || steps == 0) return result;
  SB_ASSIGN_OR_RETURN(
      const std::vector<TrainedModel> shorter,
      run.Train("time", {fixed_is_slower ? options.fixed_policy : options.dynamic_policy}, steps));
  (fixed_is_slower ? result.fixed_equal_time : result.dynamic_equal_time) = shorter[0].result;
  return result;
}

}  // namespace sparsebalance::eval
