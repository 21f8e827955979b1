#include "worker/train/trainer.h"

#include <fstream>

#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "worker/train/token_cap.h"
#include "worker/train/train_test_util.h"

namespace sparsebalance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using train_testing::ExpectClose;
using train_testing::kLengths;
using train_testing::OfferFrom;
using train_testing::PlansBy;
using train_testing::RankResult;
using train_testing::RunRanks;
using train_testing::RunSetup;
using train_testing::ScriptedPlans;
using train_testing::TinyOptions;
using train_testing::WriteDataset;

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteDataset(prefix_, kLengths, /*seed=*/1, /*masked=*/true); }

  RunSetup Setup(uint32_t ranks) {
    RunSetup setup;
    setup.options.assign(ranks, TinyOptions(prefix_, ranks));
    return setup;
  }

  // Every rank gets its plans from a source of its own, made by `settings`.
  std::vector<RankResult> RunWithPlans(RunSetup setup, const v1::PlanSettings& settings) {
    std::vector<std::unique_ptr<ScriptedPlans>> sources;
    for (size_t rank = 0; rank < setup.options.size(); ++rank) {
      sources.push_back(std::make_unique<ScriptedPlans>(PlansBy(settings)));
      setup.plans.push_back(sources.back().get());
    }
    return RunRanks(setup);
  }

  data_testing::TempFolder folder_;
  const std::string prefix_ = folder_ / "data";
};

void ExpectAllFinished(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.last, StepOutcome::kFinished);
  }
}

TEST_F(TrainerTest, TwoRanksAndOneRankTrainTheSameModelUnderPlansThatDifferInEverythingButBudgets) {
  const std::vector<RankResult> one = RunRanks(Setup(1));
  ExpectAllFinished(one);

  RunSetup two = Setup(2);
  v1::PlanSettings by_order = two.options[0].plan;
  by_order.set_policy("none");
  by_order.set_micro_batch_size(1);
  v1::PlanSettings by_differencing = two.options[0].plan;
  by_differencing.set_policy("karmarkar-karp");
  by_differencing.set_micro_batches_per_rank(9);  // some of them filler

  const std::vector<RankResult> a = RunWithPlans(two, by_order);
  const std::vector<RankResult> b = RunWithPlans(two, by_differencing);
  ExpectAllFinished(a);
  ExpectAllFinished(b);
  ExpectClose(one[0].parameters, a[0].parameters, 1e-4);
  ExpectClose(one[0].parameters, b[0].parameters, 1e-4);
  for (size_t step = 0; step < 10; ++step) {
    EXPECT_FALSE(a[0].records[step].used_fallback);
    EXPECT_EQ(a[0].records[step].policy, "none");
    EXPECT_NEAR(one[0].records[step].loss(), a[0].records[step].loss(), 1e-4);
    EXPECT_NEAR(one[0].records[step].loss(), b[0].records[step].loss(), 1e-4);
  }
  EXPECT_LT(one[0].records.back().loss(), one[0].records.front().loss());
}

TEST_F(TrainerTest, RanksHoldBitEqualParametersAfterTraining) {
  const std::vector<RankResult> results = RunRanks(Setup(3));
  ExpectAllFinished(results);
  EXPECT_EQ(results[0].parameters, results[1].parameters);
  EXPECT_EQ(results[0].parameters, results[2].parameters);
}

TEST_F(TrainerTest, ARankWithoutSequencesTakesPartInEveryStep) {
  RunSetup setup = Setup(3);
  for (TrainOptions& options : setup.options) options.global_batch_size = 1;
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[0].records) EXPECT_EQ(record.sequences(), 1);
  EXPECT_EQ(results[0].parameters, results[2].parameters);
}

TEST_F(TrainerTest, EverySequenceOfAnEpochIsTrainedExactlyOnce) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) {
    options.global_batch_size = 7;  // does not divide 24: the fourth batch holds 3
    options.steps = 8;              // two epochs
  }
  auto recorder = PlanRecorder::Open(folder_ / "plans.jsonl", /*append=*/false);
  ASSERT_TRUE(recorder.ok());
  setup.recorders = {recorder->get(), recorder->get()};
  ExpectAllFinished(RunRanks(setup));
  recorder->reset();

  std::map<uint64_t, int> epoch_one;
  std::map<uint64_t, int> both;
  std::ifstream in(folder_ / "plans.jsonl");
  for (std::string line; std::getline(in, line);) {
    v1::PlanRecord record;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok());
    for (const auto& rank : record.plan().ranks()) {
      for (const auto& micro_batch : rank.micro_batches()) {
        for (const auto& slice : micro_batch.slices()) {
          ++both[slice.sequence_id()];
          if (record.step() < 4) ++epoch_one[slice.sequence_id()];
        }
      }
    }
  }
  ASSERT_EQ(epoch_one.size(), kLengths.size());
  for (const auto& [id, times] : epoch_one) EXPECT_EQ(times, 1) << id;
  for (const auto& [id, times] : both) EXPECT_EQ(times, 2) << id;
}

TEST_F(TrainerTest, RanksWithDifferentPlansAgreeOnTheFallback) {
  RunSetup setup = Setup(2);
  v1::PlanSettings other = setup.options[0].plan;
  other.set_policy("none");
  ScriptedPlans mine(PlansBy(setup.options[0].plan));
  ScriptedPlans theirs(PlansBy(other));
  setup.plans = {&mine, &theirs};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[0].records) {
    EXPECT_TRUE(record.used_fallback);
    EXPECT_EQ(record.no_plan_reason(), v1::NO_PLAN_REASON_RANKS_DIFFER);
  }
  for (const v1::RankTelemetry& telemetry : mine.telemetry()) {
    EXPECT_EQ(telemetry.no_plan_reason(), v1::NO_PLAN_REASON_RANKS_DIFFER);
  }
  ExpectClose(RunRanks(Setup(1))[0].parameters, results[0].parameters, 1e-4);
}

TEST_F(TrainerTest, ARankWithoutAPlanSendsAllToTheFallbackAndThePlanIsUsedAgainLater) {
  RunSetup setup = Setup(2);
  v1::PlanSettings settings = setup.options[0].plan;
  settings.set_policy("none");
  for (TrainOptions& options : setup.options) options.plan_deadline = absl::Milliseconds(1);
  ScriptedPlans all(PlansBy(settings));
  // The plans of steps 3 and 4 never reach rank 1; step 5's comes after the deadline.
  ScriptedPlans gaps([&](const v1::GlobalBatch& batch) -> std::optional<PlanOffer> {
    if (batch.step() == 3 || batch.step() == 4) return std::nullopt;
    return OfferFrom(settings, batch);
  });
  setup.plans = {&all, &gaps};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const RankResult& result : results) {
    for (const StepRecord& record : result.records) {
      const bool gap = record.step == 3 || record.step == 4;
      EXPECT_EQ(record.used_fallback, gap) << record.step;
      EXPECT_EQ(record.policy, gap ? "length" : "none");
      EXPECT_EQ(record.no_plan_reason(), gap ? v1::NO_PLAN_REASON_LATE : v1::NO_PLAN_REASON_NONE);
    }
  }
}

TEST_F(TrainerTest, AFallbackSaysWhetherTheCoordinatorWasAway) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) options.plan_deadline = absl::Milliseconds(1);
  const auto never = [](const v1::GlobalBatch&) { return std::optional<PlanOffer>(); };
  ScriptedPlans present(never);
  ScriptedPlans away(never);
  away.set_coordinator_away(true);
  setup.plans = {&present, &away};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[0].records) {
    EXPECT_EQ(record.no_plan_reason(), v1::NO_PLAN_REASON_COORDINATOR_AWAY);
  }
  for (const v1::RankTelemetry& telemetry : present.telemetry()) {
    EXPECT_EQ(telemetry.no_plan_reason(), v1::NO_PLAN_REASON_LATE);
  }
}

TEST_F(TrainerTest, SequencesThatTheGuardGaveMoreAreCounted) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) options.plan.set_coverage_guard(0);
  const auto least = [&](const v1::GlobalBatch& batch) -> std::optional<PlanOffer> {
    PlanOffer offer = OfferFrom(setup.options[0].plan, batch);
    v1::Plan plan = *offer.plan;
    for (v1::RankPlan& rank : *plan.mutable_ranks()) {
      for (v1::MicroBatch& mb : *rank.mutable_micro_batches()) {
        for (v1::Slice& slice : *mb.mutable_slices()) slice.set_budget_blocks(1);
      }
    }
    offer.digest = planner::Digest(plan);
    offer.plan = std::make_shared<const v1::Plan>(plan);
    return offer;
  };
  ScriptedPlans a(least);
  ScriptedPlans b(least);
  setup.plans = {&a, &b};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  double raises = 0;
  for (ScriptedPlans* plans : {&a, &b}) {
    for (const v1::RankTelemetry& telemetry : plans->telemetry()) {
      uint64_t raised = 0;
      for (const auto& micro_batch : telemetry.micro_batches()) {
        for (const auto& sequence : micro_batch.sequences()) {
          raised += std::any_of(sequence.realized_budget_blocks().begin(),
                                sequence.realized_budget_blocks().end(),
                                [](uint32_t budget) { return budget > 1; });
        }
      }
      EXPECT_EQ(telemetry.guard_raises(), raised);
      raises += static_cast<double>(raised);
    }
  }
  EXPECT_GT(raises, 0) << "the guard raised nothing: the test shows nothing";
  double recorded = 0;
  for (const StepRecord& record : results[0].records) recorded += record.guard_raises();
  EXPECT_EQ(recorded, raises);
}

TEST_F(TrainerTest, APlanThatArrivesAfterTheDeadlineIsNotUsed) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) options.plan_deadline = absl::Milliseconds(5);
  v1::PlanSettings settings = setup.options[0].plan;
  settings.set_policy("none");
  ScriptedPlans on_time(PlansBy(settings));
  // Delivers the plan of a step only when the next one is asked for.
  class Late : public ScriptedPlans {
   public:
    using ScriptedPlans::ScriptedPlans;
    void Request(const v1::GlobalBatch& batch) override {
      if (held_.has_value()) ScriptedPlans::Request(*held_);
      held_ = batch;
    }

   private:
    std::optional<v1::GlobalBatch> held_;
  } late(PlansBy(settings));
  setup.plans = {&on_time, &late};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[1].records) EXPECT_TRUE(record.used_fallback);
}

TEST_F(TrainerTest, APlanForAnotherBatchIsNotTrainedOn) {
  RunSetup setup = Setup(2);
  std::vector<std::string> lines;
  setup.log = [&](const std::string& line) {
    static absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    lines.push_back(line);
  };
  const auto wrong = [&](const v1::GlobalBatch& batch) {
    v1::GlobalBatch other = batch;
    other.mutable_sequences(0)->set_id(other.sequences(0).id() + 1000);
    return std::optional<PlanOffer>(OfferFrom(setup.options[0].plan, other));
  };
  ScriptedPlans a(wrong);
  ScriptedPlans b(wrong);
  setup.plans = {&a, &b};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[0].records) {
    EXPECT_TRUE(record.used_fallback);
    EXPECT_EQ(record.no_plan_reason(), v1::NO_PLAN_REASON_UNFIT);
  }
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("is not in the batch")));
}

TEST_F(TrainerTest, RanksThatReadDifferentDataStopAndAreNamed) {
  RunSetup setup = Setup(3);
  std::vector<int64_t> other = kLengths;
  for (int64_t& length : other) length = length == 64 ? 63 : length;
  WriteDataset(folder_ / "other", other);
  setup.options[2].dataset_prefix = folder_ / "other";
  for (TrainOptions& options : setup.options) options.global_batch_size = 24;
  for (const RankResult& result : RunRanks(setup)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(result.status.message(), AllOf(HasSubstr("different fallback plans"),
                                               HasSubstr("ranks 0, 1: "), HasSubstr("rank 2: ")));
  }
}

TEST_F(TrainerTest, AStopRequestEndsAllRanksBeforeTheSameStep) {
  RunSetup setup = Setup(2);
  setup.stop_before_step = 4;
  for (const RankResult& result : RunRanks(setup)) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.last, StepOutcome::kStopped);
    EXPECT_EQ(result.records.size(), 4u);
  }
}

TEST_F(TrainerTest, AGradientThatIsNotFiniteIsSkippedListedAndStopsARunOfThem) {
  RunSetup setup = Setup(2);
  std::vector<std::string> lines;
  absl::Mutex mutex;
  setup.log = [&](const std::string& line) {
    absl::MutexLock lock(&mutex);
    lines.push_back(line);
  };
  for (TrainOptions& options : setup.options) {
    options.optimizer.learning_rate = 1e38;  // one update destroys the model
    options.optimizer.warmup_steps = 0;
    options.max_skipped_in_a_row = 3;
  }
  for (const RankResult& result : RunRanks(setup)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(result.status.message(), HasSubstr("3 steps in a row"));
    EXPECT_LT(result.records.size(), 10u);
  }
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("no update is made; sequences ")));
}

TEST_F(TrainerTest, TelemetryTellsTimesBudgetsCoverageAndWhatWasConsumed) {
  RunSetup setup = Setup(2);
  ScriptedPlans a(PlansBy(setup.options[0].plan));
  ScriptedPlans b(PlansBy(setup.options[0].plan));
  setup.plans = {&a, &b};
  ExpectAllFinished(RunRanks(setup));
  ASSERT_EQ(a.telemetry().size(), 10u);
  ASSERT_EQ(b.telemetry().size(), 10u);
  EXPECT_TRUE(b.consumed().empty());
  ASSERT_EQ(a.consumed().size(), 10u);
  EXPECT_EQ(a.consumed()[0].sequence_ids_size(), 8);
  for (const v1::RankTelemetry& telemetry : a.telemetry()) {
    EXPECT_GT(telemetry.step_ms(), 0);
    EXPECT_GT(telemetry.peak_memory_bytes(), 0u);
    for (const auto& micro_batch : telemetry.micro_batches()) {
      EXPECT_GT(micro_batch.forward_ms(), 0);
      EXPECT_GT(micro_batch.backward_ms(), 0);
      for (const auto& sequence : micro_batch.sequences()) {
        EXPECT_EQ(sequence.realized_budget_blocks_size(), 2);
        const auto blocks = static_cast<uint32_t>((sequence.tokens() + 7) / 8);
        ASSERT_GT(sequence.coverage().budget_blocks_size(), 0);
        EXPECT_EQ(*sequence.coverage().budget_blocks().rbegin(), blocks);
        EXPECT_NEAR(*sequence.coverage().coverage().rbegin(), 1.0, 1e-5);
      }
    }
  }
}

TEST_F(TrainerTest, CoverageIsAuditedEverySoManySteps) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) {
    options.audit_every = 4;
    options.audit_queries = 1000;
  }
  ScriptedPlans a(PlansBy(setup.options[0].plan));
  ScriptedPlans b(PlansBy(setup.options[0].plan));
  setup.plans = {&a, &b};
  const std::vector<RankResult> results = RunRanks(setup);
  ExpectAllFinished(results);
  for (const StepRecord& record : results[0].records) {
    EXPECT_EQ(record.audited_sequences() > 0, record.step % 4 == 0) << "step " << record.step;
    if (record.audited_sequences() == 0) continue;
    EXPECT_GT(record.audited_mass(), 0);
    EXPECT_LE(record.audited_mass(), 1);
  }
  for (const v1::RankTelemetry& telemetry : a.telemetry()) {
    for (const auto& micro_batch : telemetry.micro_batches()) {
      for (const auto& sequence : micro_batch.sequences()) {
        EXPECT_EQ(sequence.has_attention_mass(),
                  telemetry.step() % 4 == 0 && sequence.tokens() > 8);
        EXPECT_EQ(sequence.has_realized_coverage(), sequence.has_attention_mass());
        EXPECT_EQ(sequence.layer_coverage_size(), 0);
      }
    }
  }
}

TEST_F(TrainerTest, BudgetsByLayerAreTrainedAsPlannedAndCurvesAreReportedByLayer) {
  RunSetup setup = Setup(2);
  for (TrainOptions& options : setup.options) {
    options.plan.set_layer_budgets(true);
    options.plan.set_coverage_guard(1.0);  // as planned
  }
  const auto by_layer = [&](const v1::GlobalBatch& batch) -> std::optional<PlanOffer> {
    PlanOffer offer = OfferFrom(setup.options[0].plan, batch);
    v1::Plan plan = *offer.plan;
    for (v1::RankPlan& rank : *plan.mutable_ranks()) {
      for (v1::MicroBatch& mb : *rank.mutable_micro_batches()) {
        for (v1::Slice& slice : *mb.mutable_slices()) {
          slice.add_layer_budget_blocks(1);
          slice.add_layer_budget_blocks(2);
        }
      }
    }
    offer.digest = planner::Digest(plan);
    offer.plan = std::make_shared<const v1::Plan>(plan);
    return offer;
  };
  ScriptedPlans a(by_layer);
  ScriptedPlans b(by_layer);
  setup.plans = {&a, &b};
  ExpectAllFinished(RunRanks(setup));
  for (const v1::RankTelemetry& telemetry : a.telemetry()) {
    EXPECT_FALSE(telemetry.used_fallback());
    for (const auto& micro_batch : telemetry.micro_batches()) {
      for (const auto& sequence : micro_batch.sequences()) {
        ASSERT_EQ(sequence.realized_budget_blocks_size(), 2);
        EXPECT_EQ(sequence.realized_budget_blocks(0), 1u);
        EXPECT_EQ(sequence.realized_budget_blocks(1), sequence.tokens() > 8 ? 2u : 1u);
        ASSERT_EQ(sequence.layer_coverage_size(), 2);
        for (int g = 0; g < sequence.coverage().coverage_size(); ++g) {
          EXPECT_NEAR(
              sequence.coverage().coverage(g),
              (sequence.layer_coverage(0).coverage(g) + sequence.layer_coverage(1).coverage(g)) / 2,
              1e-5);
        }
      }
    }
  }
}

TEST_F(TrainerTest, AMemoryLimitLowersTheTokenCapAndIsKept) {
  RunSetup setup = Setup(1);
  TrainOptions& options = setup.options[0];
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  ASSERT_TRUE(FitTokenCap(options, 1, log).ok());
  EXPECT_EQ(options.plan.max_tokens_per_micro_batch(), 128u);
  EXPECT_TRUE(lines.empty());

  options.plan.set_max_tokens_per_micro_batch(uint64_t{1} << 22);
  options.memory_limit_bytes = int64_t{4} << 20;
  ASSERT_TRUE(FitTokenCap(options, 1, log).ok());
  const uint64_t cap = options.plan.max_tokens_per_micro_batch();
  EXPECT_LT(cap, uint64_t{1} << 22);
  EXPECT_GT(cap, 128u);
  EXPECT_THAT(lines, ::testing::ElementsAre(HasSubstr("the memory limit of 4 MiB a rank holds")));
  for (const RankResult& result : RunRanks(setup)) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    for (const StepRecord& record : result.records) {
      EXPECT_LE(record.peak_memory_bytes(), 4 << 20);
    }
  }

  options.memory_limit_bytes = 1000;
  EXPECT_EQ(FitTokenCap(options, 1, log).code(), absl::StatusCode::kResourceExhausted);
  // A rank that needs more all the same stops with an error instead of taking the machine down.
  options.memory_limit_bytes = 300'000;
  for (const RankResult& result : RunRanks(setup)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted) << result.status;
    EXPECT_THAT(result.status.message(), HasSubstr("within the limit of 300000 bytes"));
  }
}

TEST_F(TrainerTest, ActivationCheckpointingTrainsTheSameModel) {
  RunSetup setup = Setup(2);
  const std::vector<RankResult> keeps = RunRanks(setup);
  for (TrainOptions& options : setup.options) options.model.activation_checkpointing = true;
  const std::vector<RankResult> forgets = RunRanks(setup);
  ExpectAllFinished(keeps);
  ExpectAllFinished(forgets);
  EXPECT_EQ(keeps[0].parameters, forgets[0].parameters);
}

TEST_F(TrainerTest, RanksThatWouldBeginWithDifferentParametersDoNotTrain) {
  RunSetup setup = Setup(2);
  setup.options[1].seed = 8;
  for (const RankResult& result : RunRanks(setup)) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(result.status.message(), AllOf(HasSubstr("--seed"), HasSubstr("--init-from")));
  }
}

}  // namespace
}  // namespace sparsebalance
