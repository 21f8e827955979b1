// A run that is interrupted and resumed ends with the same bits as one that was not.
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/train_test_util.h"
#include "worker/train/trainer.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;
using train_testing::kLengths;
using train_testing::PlansBy;
using train_testing::RankResult;
using train_testing::RunRanks;
using train_testing::RunSetup;
using train_testing::ScriptedPlans;
using train_testing::TinyOptions;
using train_testing::WriteDataset;

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteDataset(prefix_, kLengths); }

  RunSetup Setup(const std::string& checkpoints) {
    RunSetup setup;
    setup.options.assign(2, TinyOptions(prefix_, 2));
    for (TrainOptions& options : setup.options) {
      options.checkpoint_dir = checkpoints;
      options.global_batch_size = 5;  // step 5 begins its epoch's last batch
    }
    return setup;
  }

  static void ExpectOk(const std::vector<RankResult>& results) {
    for (const RankResult& result : results) ASSERT_TRUE(result.status.ok()) << result.status;
  }

  data_testing::TempFolder folder_;
  const std::string prefix_ = folder_ / "data";
};

TEST_F(ResumeTest, StepTenIsBitEqualWithFixedBudgets) {
  const std::vector<RankResult> whole = RunRanks(Setup(folder_ / "whole"));
  ExpectOk(whole);

  RunSetup first = Setup(folder_ / "parts");
  first.stop_before_step = 5;
  ExpectOk(RunRanks(first));
  RunSetup second = Setup(folder_ / "parts");
  second.resume = true;
  const std::vector<RankResult> resumed = RunRanks(second);
  ExpectOk(resumed);

  ASSERT_EQ(resumed[0].records.size(), 5u);
  EXPECT_EQ(resumed[0].records[0].step, 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(resumed[0].records[i].loss(), whole[0].records[i + 5].loss());
    EXPECT_EQ(resumed[0].records[i].learning_rate, whole[0].records[i + 5].learning_rate);
  }
  EXPECT_EQ(resumed[0].parameters, whole[0].parameters);
}

TEST_F(ResumeTest, StepTenIsBitEqualWithReplayedPlansOfChangingBudgets) {
  // Budgets that change from step to step and differ between sequences, as dynamic ones do.
  RunSetup recorded = Setup(folder_ / "whole");
  const v1::PlanSettings settings = recorded.options[0].plan;
  const auto dynamic = [settings](const v1::GlobalBatch& batch) {
    PlanOffer offer = train_testing::OfferFrom(settings, batch);
    v1::Plan plan = *offer.plan;
    for (auto& rank : *plan.mutable_ranks()) {
      for (auto& micro_batch : *rank.mutable_micro_batches()) {
        for (auto& slice : *micro_batch.mutable_slices()) {
          slice.set_budget_blocks(1 +
                                  static_cast<uint32_t>((slice.sequence_id() + batch.step()) % 6));
        }
      }
    }
    offer.digest = planner::Digest(plan);
    offer.plan = std::make_shared<const v1::Plan>(plan);
    return std::optional<PlanOffer>(offer);
  };
  ScriptedPlans a(dynamic);
  ScriptedPlans b(dynamic);
  recorded.plans = {&a, &b};
  std::vector<std::unique_ptr<PlanRecorder>> recorders;
  for (const char* name : {"plans/node-0.jsonl", "plans/node-1.jsonl"}) {
    auto recorder = PlanRecorder::Open(folder_ / name, /*append=*/false);
    ASSERT_TRUE(recorder.ok());
    recorders.push_back(*std::move(recorder));
    recorded.recorders.push_back(recorders.back().get());
  }
  const std::vector<RankResult> whole = RunRanks(recorded);
  ExpectOk(whole);
  recorders.clear();
  for (const StepRecord& record : whole[0].records) EXPECT_FALSE(record.used_fallback);

  const auto replay = [&](RunSetup setup) {
    auto one = PlanReplay::Load({folder_ / "plans"});
    auto other = PlanReplay::Load({folder_ / "plans"});
    EXPECT_TRUE(one.ok() && other.ok()) << one.status();
    setup.plans = {one->get(), other->get()};
    return RunRanks(setup);
  };
  RunSetup first = Setup(folder_ / "parts");
  first.stop_before_step = 5;
  ExpectOk(replay(first));
  RunSetup second = Setup(folder_ / "parts");
  second.resume = true;
  const std::vector<RankResult> resumed = replay(second);
  ExpectOk(resumed);
  EXPECT_EQ(resumed[0].parameters, whole[0].parameters);

  // Without the recorded budgets the result is another: the comparison above can fail.
  const std::vector<RankResult> fixed = RunRanks(Setup(folder_ / "fixed"));
  ExpectOk(fixed);
  EXPECT_NE(fixed[0].parameters, whole[0].parameters);
}

TEST_F(ResumeTest, AnotherNumberOfRanksGoesOnInTheSameOrderToTheSameLosses) {
  // Budgets by sequence and step, whatever rank a sequence is on.
  const auto plans_for = [&](uint32_t ranks) {
    v1::PlanSettings settings = TinyOptions(prefix_, ranks).plan;
    return [settings](const v1::GlobalBatch& batch) {
      PlanOffer offer = train_testing::OfferFrom(settings, batch);
      v1::Plan plan = *offer.plan;
      for (auto& rank : *plan.mutable_ranks()) {
        for (auto& micro_batch : *rank.mutable_micro_batches()) {
          for (auto& slice : *micro_batch.mutable_slices()) {
            slice.set_budget_blocks(
                1 + static_cast<uint32_t>((slice.sequence_id() + batch.step()) % 6));
          }
        }
      }
      offer.digest = planner::Digest(plan);
      offer.plan = std::make_shared<const v1::Plan>(plan);
      return std::optional<PlanOffer>(offer);
    };
  };
  struct Run {
    std::vector<RankResult> results;
    std::vector<std::vector<uint64_t>> consumed;  // by step
  };
  const auto run = [&](uint32_t ranks, const std::string& checkpoints, uint64_t stop, bool resume) {
    RunSetup setup = Setup(checkpoints);
    setup.options.assign(ranks, TinyOptions(prefix_, ranks));
    for (TrainOptions& options : setup.options) {
      options.checkpoint_dir = checkpoints;
      options.global_batch_size = 5;
    }
    setup.stop_before_step = stop;
    setup.resume = resume;
    std::vector<std::unique_ptr<ScriptedPlans>> plans;
    for (uint32_t r = 0; r < ranks; ++r) {
      plans.push_back(std::make_unique<ScriptedPlans>(plans_for(ranks)));
      setup.plans.push_back(plans.back().get());
    }
    Run out;
    out.results = RunRanks(setup);
    ExpectOk(out.results);
    for (const v1::ConsumedBatch& batch : plans[0]->consumed()) {
      out.consumed.emplace_back(batch.sequence_ids().begin(), batch.sequence_ids().end());
    }
    return out;
  };
  const Run whole = run(2, folder_ / "whole", 100, false);
  for (const uint32_t ranks : {1u, 3u}) {
    const std::string checkpoints = folder_ / ("parts-" + std::to_string(ranks));
    run(2, checkpoints, 5, false);
    const Run resumed = run(ranks, checkpoints, 100, true);
    ASSERT_EQ(resumed.results[0].records.size(), 5u);
    ASSERT_EQ(resumed.consumed.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_FALSE(resumed.results[0].records[i].used_fallback);
      EXPECT_EQ(resumed.consumed[i], whole.consumed[i + 5]);
      EXPECT_NEAR(resumed.results[0].records[i].loss(), whole.results[0].records[i + 5].loss(),
                  1e-4);
    }
    train_testing::ExpectClose(whole.results[0].parameters, resumed.results[0].parameters, 1e-3);
  }
}

TEST_F(ResumeTest, ACoverageMemoryTravelsWithTheCheckpoint) {
  RunSetup first = Setup(folder_ / "c");
  first.stop_before_step = 3;
  ExpectOk(RunRanks(first));
  auto loaded = CheckpointStore(folder_ / "c", 2, [](const std::string&) {}).LoadNewest();
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  ASSERT_EQ((*loaded)->coverage_files.size(), 2u);
  size_t sequences = 0;
  for (const std::string& path : (*loaded)->coverage_files) {
    auto entries = CoverageNotes::Load(path);
    ASSERT_TRUE(entries.ok()) << entries.status();
    sequences += entries->size();
  }
  EXPECT_EQ(sequences, 15u);
}

TEST_F(ResumeTest, ADamagedCheckpointIsPassedOverForTheOneBefore) {
  RunSetup setup = Setup(folder_ / "c");
  for (TrainOptions& options : setup.options) options.checkpoint_every = 4;
  ExpectOk(RunRanks(setup));  // leaves step 8 and step 10
  const std::string newest = folder_ / "c/step-00000010/model.safetensors";
  ASSERT_TRUE(std::filesystem::exists(newest));
  {
    std::fstream file(newest, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('x');
  }
  std::vector<std::string> lines;
  const CheckpointStore store(folder_ / "c", 2,
                              [&](const std::string& line) { lines.push_back(line); });
  auto loaded = store.LoadNewest();
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->position.next_step, 8u);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("the checksum of model.safetensors does not fit"));
}

TEST_F(ResumeTest, OldCheckpointsAreRemovedAndHalfWrittenOnesNotSeen) {
  RunSetup setup = Setup(folder_ / "c");
  for (TrainOptions& options : setup.options) options.checkpoint_every = 2;
  ExpectOk(RunRanks(setup));
  std::filesystem::create_directories(folder_ / "c/step-00000099.partial");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "c")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("step-00000008", "step-00000010",
                                                     "step-00000099.partial"));
  auto loaded = CheckpointStore(folder_ / "c", 2, [](const std::string&) {}).LoadNewest();
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_EQ((*loaded)->position.next_step, 10u);
}

TEST_F(ResumeTest, ACheckpointOfOtherDataModelOrSeedIsRefused) {
  RunSetup first = Setup(folder_ / "c");
  first.stop_before_step = 2;
  ExpectOk(RunRanks(first));
  const auto resumed_with = [&](const std::function<void(TrainOptions&)>& change) {
    RunSetup setup = Setup(folder_ / "c");
    setup.resume = true;
    for (TrainOptions& options : setup.options) change(options);
    return RunRanks(setup)[0].status;
  };
  WriteDataset(folder_ / "other", {10, 20, 30});
  const absl::Status data =
      resumed_with([&](TrainOptions& options) { options.dataset_prefix = folder_ / "other"; });
  EXPECT_EQ(data.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(data.message(), HasSubstr("another data set"));
  const absl::Status model =
      resumed_with([](TrainOptions& options) { options.model.intermediate_size = 32; });
  EXPECT_THAT(model.message(), HasSubstr("another model"));
  const absl::Status seed = resumed_with([](TrainOptions& options) { options.seed = 8; });
  EXPECT_THAT(seed.message(), HasSubstr("another seed"));
  const absl::Status theta =
      resumed_with([](TrainOptions& options) { options.model.rope_theta = 5e5F; });
  EXPECT_THAT(theta.message(), HasSubstr("another rope_theta"));
}

TEST_F(ResumeTest, AReplayThatEndsEarlyIsAnErrorAndNotAFallback) {
  RunSetup recorded = Setup("");
  for (TrainOptions& options : recorded.options) options.steps = 4;
  auto recorder = PlanRecorder::Open(folder_ / "p.jsonl", /*append=*/false);
  ASSERT_TRUE(recorder.ok());
  recorded.recorders = {recorder->get(), recorder->get()};
  ExpectOk(RunRanks(recorded));
  recorder->reset();
  auto replay = PlanReplay::Load({folder_ / "p.jsonl"});
  ASSERT_TRUE(replay.ok()) << replay.status();
  RunSetup longer = Setup("");
  longer.plans = {replay->get(), replay->get()};
  const std::vector<RankResult> results = RunRanks(longer);
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(results[0].status.message(), HasSubstr("no step 4 (it has steps 0 to 3)"));
}

}  // namespace
}  // namespace sparsebalance
