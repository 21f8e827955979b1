// A tiny model, tiny data and ranks as threads, for tests of training.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/planner/digest.h"
#include "coordinator/planner/planner.h"
#include "gtest/gtest.h"
#include "worker/comm/local_communicator.h"
#include "worker/data/data_test_util.h"
#include "worker/data/indexed_dataset_builder.h"
#include "worker/train/trainer.h"

namespace sparsebalance::train_testing {

inline constexpr int kVocabulary = 64;

// Of 24 sequences: one token, whole blocks of 8, partial ones, and one as long as the cap.
inline const std::vector<int64_t> kLengths = {5,  100, 17, 64, 33, 1,  90, 8,  57, 12,  128, 40,
                                              71, 3,   26, 95, 50, 19, 80, 61, 7,  110, 45,  30};

// Sequences of these lengths with tokens drawn from `seed`; every third token of a sequence that
// has an odd id is not supervised where `masked`.
inline void WriteDataset(const std::string& prefix, const std::vector<int64_t>& lengths,
                         uint64_t seed = 1, bool masked = false) {
  auto builder =
      data::IndexedDatasetBuilder::Create(prefix, data::TokenType::kUint16, {.overwrite = true});
  ASSERT_TRUE(builder.ok()) << builder.status();
  uint64_t state = seed;
  for (size_t id = 0; id < lengths.size(); ++id) {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> mask;
    for (int64_t t = 0; t < lengths[id]; ++t) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      tokens.push_back(static_cast<int32_t>((state >> 33) % kVocabulary));
      mask.push_back(masked && id % 2 == 1 && t % 3 == 0 ? 0 : 1);
    }
    ASSERT_TRUE(builder->Add(tokens, mask).ok());
    builder->EndDocument();
  }
  data::DatasetMetadata metadata;
  metadata.tokenizer = "test";
  metadata.vocabulary_size = kVocabulary;
  const absl::Status status = builder->Finalize(metadata);
  ASSERT_TRUE(status.ok()) << status;
}

inline TrainOptions TinyOptions(const std::string& prefix, uint32_t ranks) {
  TrainOptions options;
  options.job.set_namespace_("test");
  options.job.set_name("tiny");
  options.parallelism.set_data(ranks);
  options.parallelism.set_pipeline(1);
  options.parallelism.set_sequence(1);
  options.plan.set_policy("length");
  options.plan.set_data_parallel_size(ranks);
  options.plan.set_pipeline_parallel_size(1);
  options.plan.set_block_tokens(8);
  options.plan.set_base_budget_blocks(3);
  options.plan.set_min_budget_blocks(1);
  options.plan.set_max_tokens_per_micro_batch(128);
  options.plan.set_coverage_guard(0.1);
  options.model.vocab_size = kVocabulary;
  options.model.hidden_size = 16;
  options.model.num_layers = 2;
  options.model.num_heads = 2;
  options.model.num_kv_heads = 1;
  options.model.head_dim = 8;
  options.model.intermediate_size = 24;
  options.model.block_tokens = 8;
  options.optimizer.learning_rate = 3e-3;
  options.optimizer.min_learning_rate = 3e-4;
  options.optimizer.warmup_steps = 2;
  options.dataset_prefix = prefix;
  options.global_batch_size = 8;
  options.steps = 10;
  options.seed = 7;
  options.backend = "cpu";
  options.collective_timeout = absl::Seconds(30);
  options.plan_deadline = absl::Seconds(20);
  return options;
}

// Hands out the plans that `make` computes from the batch that was asked for; an empty optional is
// a plan that never comes. Waiting honours the deadline.
class ScriptedPlans : public PlanSource {
 public:
  using Make = std::function<std::optional<PlanOffer>(const v1::GlobalBatch&)>;
  explicit ScriptedPlans(Make make) : make_(std::move(make)) {}

  void Request(const v1::GlobalBatch& batch) override {
    std::optional<PlanOffer> offer = make_(batch);
    absl::MutexLock lock(&mutex_);
    if (offer.has_value()) offers_[batch.step()] = *std::move(offer);
  }
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return offers_.contains(step); };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&there), deadline)) return std::nullopt;
    return offers_[step];
  }
  void set_coordinator_away(bool away) { away_ = away; }
  bool CoordinatorAway() override { return away_; }
  void Report(v1::RankTelemetry telemetry) override {
    absl::MutexLock lock(&mutex_);
    telemetry_.push_back(std::move(telemetry));
  }
  void ReportConsumed(v1::ConsumedBatch consumed) override {
    absl::MutexLock lock(&mutex_);
    consumed_.push_back(std::move(consumed));
  }
  absl::Status Health() override { return absl::OkStatus(); }

  std::vector<v1::RankTelemetry> telemetry() {
    absl::MutexLock lock(&mutex_);
    return telemetry_;
  }
  std::vector<v1::ConsumedBatch> consumed() {
    absl::MutexLock lock(&mutex_);
    return consumed_;
  }

 private:
  std::atomic<bool> away_{false};
  const Make make_;
  absl::Mutex mutex_;
  std::map<uint64_t, PlanOffer> offers_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::RankTelemetry> telemetry_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ConsumedBatch> consumed_ ABSL_GUARDED_BY(mutex_);
};

// A plan by the planner itself; `settings` decides policy, micro-batches and budgets.
inline PlanOffer OfferFrom(const v1::PlanSettings& settings, const v1::GlobalBatch& batch) {
  const absl::StatusOr<v1::Plan> plan = planner::MakePlan(FallbackRequest(settings, batch));
  EXPECT_TRUE(plan.ok()) << plan.status();
  PlanOffer offer;
  offer.leader_epoch = 1;
  offer.generation = 1;
  offer.step = batch.step();
  offer.digest = planner::Digest(*plan);
  offer.plan = std::make_shared<const v1::Plan>(*plan);
  return offer;
}

inline ScriptedPlans::Make PlansBy(const v1::PlanSettings& settings) {
  return [settings](const v1::GlobalBatch& batch) { return OfferFrom(settings, batch); };
}

struct RankResult {
  absl::Status status;
  std::vector<StepRecord> records;
  std::map<std::string, std::vector<float>> parameters;
  StepOutcome last = StepOutcome::kTrained;
};

struct RunSetup {
  std::vector<TrainOptions> options;     // one a rank
  std::vector<PlanSource*> plans;        // one a rank, or none at all
  std::vector<PlanRecorder*> recorders;  // likewise
  uint64_t stop_before_step = ~uint64_t{0};
  bool resume = false;
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

inline RankResult RunRank(const RunSetup& setup, size_t rank, Communicator* comm) {
  RankResult result;
  const TrainOptions& options = setup.options[rank];
  const auto run = [&]() -> absl::Status {
    auto dataset = data::IndexedDataset::Open(options.dataset_prefix);
    if (!dataset.ok()) return dataset.status();
    TrainerDependencies dependencies;
    dependencies.comm = comm;
    dependencies.dataset = &*dataset;
    dependencies.log = setup.log;
    if (!setup.plans.empty()) dependencies.plans = setup.plans[rank];
    if (!setup.recorders.empty()) {
      dependencies.recorder = setup.recorders[rank];
      dependencies.local_ranks = static_cast<size_t>(
          std::count(setup.recorders.begin(), setup.recorders.end(), setup.recorders[rank]));
    }
    std::optional<Checkpoint> checkpoint;
    if (setup.resume) {
      auto loaded = CheckpointStore(options.checkpoint_dir, 2, setup.log).LoadNewest();
      if (!loaded.ok()) return loaded.status();
      checkpoint = *std::move(loaded);
    }
    auto trainer = Trainer::Create(options, std::move(dependencies),
                                   checkpoint.has_value() ? &*checkpoint : nullptr);
    if (!trainer.ok()) return trainer.status();
    if (absl::Status status = (*trainer)->Prefetch(); !status.ok()) return status;
    while (true) {
      auto outcome =
          (*trainer)->RunStep(/*stop_requested=*/(*trainer)->next_step() >= setup.stop_before_step);
      if (!outcome.ok()) return outcome.status();
      result.last = *outcome;
      if (*outcome != StepOutcome::kTrained) break;
      result.records.push_back((*trainer)->last_record());
    }
    if (absl::Status status = (*trainer)->SaveCheckpoint(); !status.ok()) return status;
    auto tensors = (*trainer)->compute().ModelTensors();
    if (!tensors.ok()) return tensors.status();
    for (const TensorView& tensor : *tensors) {
      result.parameters[tensor.name].assign(tensor.data.begin(), tensor.data.end());
    }
    return absl::OkStatus();
  };
  result.status = run();
  if (!result.status.ok()) comm->Abort();
  return result;
}

// Trains on as many ranks as there are options, each in a thread; returns when all have ended.
inline std::vector<RankResult> RunRanks(const RunSetup& setup) {
  auto group = CreateLocalGroup(static_cast<int>(setup.options.size()));
  EXPECT_TRUE(group.ok()) << group.status();
  std::vector<RankResult> results(setup.options.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < setup.options.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = RunRank(setup, rank, (*group)[rank].get()); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// |a - b| / |a| per tensor.
inline void ExpectClose(const std::map<std::string, std::vector<float>>& a,
                        const std::map<std::string, std::vector<float>>& b, double tolerance) {
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    const std::vector<float>& others = b.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(values[i]) - others[i];
      difference += d * d;
      norm += static_cast<double>(values[i]) * values[i];
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << name;
  }
}

}  // namespace sparsebalance::train_testing
