// Training with look-ahead: whatever plans exchange between batches, every sequence of an epoch is
// trained exactly once and near its place, through fallbacks, stops and resumes.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/train_test_util.h"
#include "worker/train/trainer.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;
using train_testing::kLengths;
using train_testing::RankResult;
using train_testing::RunRanks;
using train_testing::RunSetup;
using train_testing::ScriptedPlans;
using train_testing::TinyOptions;
using train_testing::WriteDataset;

constexpr uint32_t kLookahead = 3;
constexpr uint64_t kBatch = 4;   // 24 sequences: epochs of six steps
constexpr uint64_t kSteps = 12;  // two epochs

// The plan of a batch with exchanges that a planner would hardly make: with every batch that
// follows, one sequence that may still wait for one that need not.
PlanOffer ExchangingOffer(const v1::PlanSettings& settings, const v1::GlobalBatch& batch) {
  v1::GlobalBatch trained = batch;
  std::vector<v1::SequenceExchange> exchanges;
  size_t next = 0;
  for (const v1::FollowingBatch& following : batch.following()) {
    const uint64_t ahead = following.step() - batch.step();
    while (next < static_cast<size_t>(batch.sequences_size()) &&
           batch.sequences(static_cast<int>(next)).deferred_steps() + ahead >= kLookahead) {
      ++next;
    }
    if (next == static_cast<size_t>(batch.sequences_size())) break;
    const int theirs = static_cast<int>(batch.step() % kBatch);
    v1::SequenceExchange& exchange = exchanges.emplace_back();
    exchange.set_later_id(batch.sequences(static_cast<int>(next)).id());
    exchange.set_now_id(following.sequences(theirs).id());
    exchange.set_later_step(following.step());
    *trained.mutable_sequences(static_cast<int>(next++)) = following.sequences(theirs);
  }
  PlanOffer offer = train_testing::OfferFrom(settings, trained);
  v1::Plan plan = *offer.plan;
  plan.mutable_exchanges()->Add(exchanges.begin(), exchanges.end());
  offer.digest = planner::Digest(plan);
  offer.plan = std::make_shared<const v1::Plan>(plan);
  return offer;
}

class LookaheadTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteDataset(prefix_, kLengths); }

  RunSetup MakeSetup() {
    RunSetup setup;
    setup.options.assign(2, TinyOptions(prefix_, 2));
    for (TrainOptions& options : setup.options) {
      options.plan.set_lookahead_steps(kLookahead);
      options.global_batch_size = kBatch;
      options.steps = kSteps;
      options.plan_deadline = absl::Milliseconds(200);
    }
    return setup;
  }

  // Every rank's plans are `make`'s, but none at the steps where `missing` says so for its rank.
  std::vector<RankResult> Run(
      RunSetup setup, const std::function<bool(size_t rank, uint64_t step)>& missing =
                          [](size_t, uint64_t) { return false; }) {
    consumed_.clear();
    std::vector<std::unique_ptr<ScriptedPlans>> sources;
    for (size_t rank = 0; rank < setup.options.size(); ++rank) {
      const v1::PlanSettings settings = setup.options[rank].plan;
      sources.push_back(std::make_unique<ScriptedPlans>(
          [this, settings, missing,
           rank](const v1::GlobalBatch& batch) -> std::optional<PlanOffer> {
            if (missing(rank, batch.step())) return std::nullopt;
            PlanOffer offer = ExchangingOffer(settings, batch);
            if (rank == 0) exchanged_ += offer.plan->exchanges_size();
            return offer;
          }));
      setup.plans.push_back(sources.back().get());
    }
    std::vector<RankResult> results = RunRanks(setup);
    consumed_ = sources[0]->consumed();
    for (const RankResult& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
    return results;
  }

  // Of the batches that rank 0 reported, from the first one on.
  void ExpectEachOnceAnEpoch(const std::vector<v1::ConsumedBatch>& consumed) {
    std::map<uint64_t, std::map<uint64_t, int>> epochs;
    auto home = data::GlobalBatchSampler::Create(
        {.dataset_size = kLengths.size(), .global_batch_size = kBatch, .seed = 7});
    ASSERT_TRUE(home.ok());
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> home_step;  // by epoch and id
    for (uint64_t step = 0; step < kSteps; ++step) {
      const data::GlobalBatch batch = home->Next();
      for (const uint64_t id : batch.ids) home_step[{batch.position.epoch, id}] = step;
    }
    for (const v1::ConsumedBatch& batch : consumed) {
      for (const uint64_t id : batch.sequence_ids()) {
        ++epochs[batch.epoch()][id];
        const uint64_t own = home_step[{batch.epoch(), id}];
        const uint64_t moved = own > batch.step() ? own - batch.step() : batch.step() - own;
        EXPECT_LT(moved, kLookahead) << "sequence " << id << " at step " << batch.step();
      }
    }
    ASSERT_EQ(epochs.size(), 2u);
    for (const auto& [epoch, times] : epochs) {
      EXPECT_EQ(times.size(), kLengths.size()) << "epoch " << epoch;
      for (const auto& [id, count] : times) EXPECT_EQ(count, 1) << "sequence " << id;
    }
  }

  data_testing::TempFolder folder_;
  const std::string prefix_ = folder_ / "data";
  std::vector<v1::ConsumedBatch> consumed_;
  std::atomic<int> exchanged_ = 0;
};

TEST_F(LookaheadTest, EverySequenceIsTrainedOnceAnEpochWhateverIsExchanged) {
  const std::vector<RankResult> results = Run(MakeSetup());
  for (const StepRecord& record : results[0].records) EXPECT_FALSE(record.used_fallback);
  ExpectEachOnceAnEpoch(consumed_);
  EXPECT_GT(exchanged_, 10);
  EXPECT_EQ(results[0].parameters, results[1].parameters);
}

TEST_F(LookaheadTest, APlanThatNotAllRanksHaveExchangesNothing) {
  const std::vector<RankResult> results =
      Run(MakeSetup(), [](size_t rank, uint64_t step) { return step % 3 == 1 && rank == 1; });
  int fallbacks = 0;
  for (const StepRecord& record : results[0].records) fallbacks += record.used_fallback ? 1 : 0;
  EXPECT_EQ(fallbacks, 4);
  ExpectEachOnceAnEpoch(consumed_);
}

TEST_F(LookaheadTest, AResumeGoesOnWithWhatWasCarried) {
  RunSetup whole = MakeSetup();
  for (TrainOptions& options : whole.options) options.checkpoint_dir = folder_ / "whole";
  const std::vector<RankResult> expected = Run(whole);
  const std::vector<v1::ConsumedBatch> all = consumed_;

  RunSetup first = MakeSetup();
  for (TrainOptions& options : first.options) options.checkpoint_dir = folder_ / "parts";
  first.stop_before_step = 4;
  Run(first);
  std::vector<v1::ConsumedBatch> parts = consumed_;
  auto loaded = CheckpointStore(folder_ / "parts", 2, [](const std::string&) {}).LoadNewest();
  ASSERT_TRUE(loaded.ok() && loaded->has_value());
  EXPECT_FALSE((*loaded)->position.carried.empty()) << "the test would show nothing";

  RunSetup second = MakeSetup();
  for (TrainOptions& options : second.options) options.checkpoint_dir = folder_ / "parts";
  second.resume = true;
  const std::vector<RankResult> resumed = Run(second);
  parts.insert(parts.end(), consumed_.begin(), consumed_.end());
  ExpectEachOnceAnEpoch(parts);
  ASSERT_EQ(parts.size(), all.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].SerializeAsString(), all[i].SerializeAsString()) << "step " << i;
  }
  EXPECT_EQ(resumed[0].parameters, expected[0].parameters);
}

TEST_F(LookaheadTest, AResumeWithoutLookAheadStillTrainsWhatWasCarried) {
  RunSetup first = MakeSetup();
  for (TrainOptions& options : first.options) options.checkpoint_dir = folder_ / "parts";
  first.stop_before_step = 4;
  Run(first);
  std::vector<v1::ConsumedBatch> parts = consumed_;
  RunSetup second = MakeSetup();
  for (TrainOptions& options : second.options) {
    options.checkpoint_dir = folder_ / "parts";
    options.plan.set_lookahead_steps(1);
  }
  second.resume = true;
  Run(second);
  parts.insert(parts.end(), consumed_.begin(), consumed_.end());
  ExpectEachOnceAnEpoch(parts);
}

TEST_F(LookaheadTest, ARecordedRunIsReplayedWithItsExchanges) {
  RunSetup setup = MakeSetup();
  auto recorder = PlanRecorder::Open(folder_ / "plans.jsonl", /*append=*/false);
  ASSERT_TRUE(recorder.ok());
  setup.recorders = {recorder->get(), recorder->get()};
  const std::vector<RankResult> recorded = Run(setup);
  recorder->reset();

  RunSetup replayed = MakeSetup();
  auto one = PlanReplay::Load({folder_ / "plans.jsonl"});
  auto other = PlanReplay::Load({folder_ / "plans.jsonl"});
  ASSERT_TRUE(one.ok() && other.ok());
  replayed.plans = {one->get(), other->get()};
  const std::vector<RankResult> again = RunRanks(replayed);
  ASSERT_TRUE(again[0].status.ok()) << again[0].status;
  EXPECT_EQ(again[0].parameters, recorded[0].parameters);
}

TEST_F(LookaheadTest, ExchangesThatDoNotFitAreNamed) {
  v1::GlobalBatch batch;
  batch.set_step(5);
  for (uint64_t id = 0; id < 4; ++id) {
    v1::BatchSequence& sequence = *batch.add_sequences();
    sequence.set_id(id);
    sequence.set_tokens(10);
    sequence.set_supervised_tokens(9);
  }
  batch.mutable_sequences(0)->set_deferred_steps(2);
  v1::FollowingBatch& following = *batch.add_following();
  following.set_step(6);
  *following.add_sequences() = batch.sequences(3);
  following.mutable_sequences(0)->set_id(9);
  v1::PlanSettings settings = TinyOptions(prefix_, 2).plan;
  v1::GlobalBatch trained = batch;
  trained.mutable_sequences(1)->set_id(9);
  v1::Plan plan = *train_testing::OfferFrom(settings, trained).plan;
  v1::SequenceExchange& exchange = *plan.add_exchanges();
  exchange.set_later_id(1);
  exchange.set_now_id(9);
  exchange.set_later_step(6);
  const auto problem = [&] {
    return std::string(CheckPlanForRank(plan, 0, batch, kLookahead).message());
  };
  EXPECT_EQ(problem(), "");
  exchange.set_later_id(0);
  EXPECT_THAT(problem(), HasSubstr("it defers sequence 0 by 3 steps, look-ahead over 3 steps"));
  exchange.set_later_id(7);
  EXPECT_THAT(problem(), HasSubstr("sequence 7 for sequence 9 of step 6, and one of them is not"));
  exchange.set_later_id(1);
  exchange.set_later_step(7);
  EXPECT_THAT(problem(), HasSubstr("is lookahead_steps (3) what the plan was made with?"));
  plan.clear_exchanges();
  const auto ok = [&](uint32_t rank) {
    return CheckPlanForRank(plan, rank, batch, kLookahead).ok();
  };
  EXPECT_FALSE(ok(0) && ok(1)) << "one of them is given sequence 9 of another batch";
}

}  // namespace
}  // namespace sparsebalance
