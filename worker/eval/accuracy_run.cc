#include "worker/eval/accuracy_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
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

  // Seconds from the start to the end of each step: the slowest rank of every step, summed up.
  std::vector<double> Clock() {
    absl::MutexLock lock(&mutex_);
    std::vector<double> clock;
    for (const auto& [rank, steps] : rank_seconds_) {
      clock.resize(std::max(clock.size(), steps.size()), 0.0);
      for (size_t s = 0; s < steps.size(); ++s) clock[s] = std::max(clock[s], steps[s]);
    }
    std::partial_sum(clock.begin(), clock.end(), clock.begin());
    return clock;
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
  ListeningPlans(PlanSource* plans, Measurements* notes) : plans_(plans), notes_(notes) {}
  void Request(const v1::GlobalBatch& batch) override { plans_->Request(batch); }
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override {
    return plans_->Wait(step, deadline);
  }
  void Report(v1::RankTelemetry telemetry) override {
    notes_->Add(telemetry);
    plans_->Report(std::move(telemetry));
  }
  void ReportConsumed(v1::ConsumedBatch consumed) override {
    plans_->ReportConsumed(std::move(consumed));
  }
  absl::Status Health() override { return plans_->Health(); }

 private:
  PlanSource* plans_;
  Measurements* notes_;
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

WorkerNodeOptions NodeOptions(const AccuracyRunOptions& options, uint64_t seed,
                              const std::string& coordinator) {
  WorkerNodeOptions node;
  node.coordinator = coordinator;
  node.session.address = coordinator;
  node.session.node_id = "node";
  node.policies = {options.fixed_policy, options.dynamic_policy};
  node.ranks.resize(options.ranks);
  std::iota(node.ranks.begin(), node.ranks.end(), 0U);
  node.output_dir = absl::StrCat(options.folder, "/seed-", seed);

  TrainOptions& train = node.train;
  train.job.set_namespace_("accuracy");
  train.job.set_name(absl::StrCat("seed-", seed));
  train.parallelism.set_data(options.ranks);
  train.parallelism.set_pipeline(1);
  train.parallelism.set_sequence(1);
  train.plan.set_data_parallel_size(options.ranks);
  train.plan.set_pipeline_parallel_size(1);
  train.plan.set_block_tokens(static_cast<uint32_t>(options.task.block_tokens));
  train.plan.set_base_budget_blocks(options.base_budget_blocks);
  train.plan.set_min_budget_blocks(1);
  train.plan.set_max_tokens_per_micro_batch(options.max_tokens_per_micro_batch);
  train.plan.set_padding_multiple(1);
  train.plan.set_coverage_guard(0.1);
  train.model = ModelOf(options.task);
  train.optimizer.learning_rate = options.learning_rate;
  // No decay: then a checkpoint on the way is what a shorter run would have ended with, and one run
  // serves for equal steps and for equal time.
  train.optimizer.min_learning_rate = options.learning_rate;
  train.optimizer.warmup_steps = 20;
  train.dataset_prefix = absl::StrCat(options.folder, "/data-", seed);
  train.global_batch_size = options.global_batch_size;
  train.steps = options.steps;
  train.seed = seed;
  train.backend = "cpu";
  // A step must not be trained by the fallback only because this machine is busy.
  train.plan_deadline = absl::Seconds(30);
  train.checkpoint_dir = absl::StrCat(options.folder, "/checkpoints-", seed);
  train.checkpoint_every = options.checkpoint_every;
  train.checkpoints_kept = static_cast<uint32_t>(options.steps / options.checkpoint_every + 1);
  return node;
}

// Asks the model that `policy` trained, as it was after `steps` steps.
absl::StatusOr<ModelResult> Ask(const AccuracyRunOptions& options, const TrainOptions& train,
                                const std::string& policy, const std::vector<double>& clock,
                                uint64_t steps) {
  SB_ASSIGN_OR_RETURN(
      const LoadedModel loaded,
      LoadModel(absl::StrFormat("%s/%s/step-%08d", train.checkpoint_dir, policy, steps),
                train.model, train.backend, /*threads=*/2));
  RecallTaskOptions held_out = options.task;
  held_out.seed = kHeldOutSeed + train.seed;
  // Both models answer under the fixed budget: the comparison is about training.
  SB_ASSIGN_OR_RETURN(const RecallResult recall,
                      EvaluateRecall(ScoreBy(*loaded.model), held_out, options.held_out_sequences,
                                     {.budget_blocks = options.base_budget_blocks}));
  ModelResult result;
  result.steps = steps;
  result.seconds = clock[steps - 1];
  result.accuracy.all = recall.total.accuracy();
  result.accuracy.beyond_own_block = recall.beyond_own_block.accuracy();
  for (const Bucket& bucket : recall.buckets) {
    result.accuracy.by_distance.push_back(bucket.tally.accuracy());
  }
  return result;
}

// The checkpoint whose time is nearest to `seconds`.
uint64_t StepsWithin(const std::vector<double>& clock, double seconds, uint64_t every) {
  uint64_t best = every;
  for (uint64_t steps = every; steps <= clock.size(); steps += every) {
    if (std::abs(clock[steps - 1] - seconds) <= std::abs(clock[best - 1] - seconds)) best = steps;
  }
  return best;
}

}  // namespace

absl::StatusOr<SeedResult> RunAccuracySeed(const AccuracyRunOptions& options, uint64_t seed) {
  if (options.checkpoint_every == 0 || options.steps == 0 ||
      options.steps % options.checkpoint_every != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.steps, " steps are not a multiple above 0 of ",
                     options.checkpoint_every, ", the steps between checkpoints"));
  }
  ServerConfig server_config;
  server_config.listen = {"127.0.0.1", 0};
  SB_ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorServer> server,
                      CoordinatorServer::Start(server_config));
  WorkerNodeOptions node =
      NodeOptions(options, seed, absl::StrCat("127.0.0.1:", server->grpc_address().port));
  const TrainOptions& train = node.train;
  RecallTaskOptions task = options.task;
  task.seed = seed;
  SB_RETURN_IF_ERROR(WriteRecallDataset(task, options.training_sequences, train.dataset_prefix,
                                        /*overwrite=*/true));

  // Sources are wrapped in the order of the policies, one a job.
  Measurements fixed;
  Measurements dynamic;
  std::vector<Measurements*> unclaimed = {&dynamic, &fixed};
  node.wrap_plan_source = [&unclaimed](PlanSource* plans) -> std::unique_ptr<PlanSource> {
    Measurements* notes = unclaimed.back();
    unclaimed.pop_back();
    return std::make_unique<ListeningPlans>(plans, notes);
  };
  StopSignal stop;
  SB_ASSIGN_OR_RETURN(const WorkerNodeResult run, RunWorkerNode(node, stop));
  for (const PolicySummary& summary : run.summaries) {
    options.log(absl::StrFormat("seed %d, %s: %d steps, loss %.3f -> %.3f, %d by the fallback",
                                seed, summary.policy, summary.steps, summary.loss_first,
                                summary.loss_last, summary.fallback_steps));
  }

  SeedResult result;
  result.seed = seed;
  const std::vector<double> fixed_clock = fixed.Clock();
  const std::vector<double> dynamic_clock = dynamic.Clock();
  if (fixed_clock.size() != options.steps || dynamic_clock.size() != options.steps) {
    return absl::InternalError("not every step was measured");
  }
  const double seconds = std::min(fixed_clock.back(), dynamic_clock.back());
  const uint64_t every = options.checkpoint_every;
  const auto ask_fixed = [&](uint64_t steps) {
    return Ask(options, train, options.fixed_policy, fixed_clock, steps);
  };
  const auto ask_dynamic = [&](uint64_t steps) {
    return Ask(options, train, options.dynamic_policy, dynamic_clock, steps);
  };
  SB_ASSIGN_OR_RETURN(result.fixed_equal_steps, ask_fixed(options.steps));
  SB_ASSIGN_OR_RETURN(result.dynamic_equal_steps, ask_dynamic(options.steps));
  SB_ASSIGN_OR_RETURN(result.fixed_equal_time, ask_fixed(StepsWithin(fixed_clock, seconds, every)));
  SB_ASSIGN_OR_RETURN(result.dynamic_equal_time,
                      ask_dynamic(StepsWithin(dynamic_clock, seconds, every)));
  result.fixed_coverage = run.summaries[0].coverage_mean;
  result.dynamic_coverage = run.summaries[1].coverage_mean;
  result.fixed_budget = fixed.MeanBudget();
  result.dynamic_budget = dynamic.MeanBudget();
  result.sequences_moved =
      dynamic.Moved(options.base_budget_blocks, static_cast<uint64_t>(options.task.block_tokens));
  std::error_code error;  // what is left behind is only space
  std::filesystem::remove_all(train.checkpoint_dir, error);
  return result;
}

}  // namespace sparsebalance::eval
