#include "coordinator/planner/lookahead.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/explain.h"
#include "coordinator/planner/plan_expectations.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/test_jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

using testing::Contains;
using testing::HasSubstr;

// 1 ms a thousand tokens and 1 ms a micro-batch; ids count on over the batches.
v1::PlanRequest Batches(uint32_t ranks, uint32_t lookahead,
                        const std::vector<std::vector<uint64_t>>& tokens) {
  v1::PlanRequest request = LinearRequest(ranks, tokens[0]);
  request.mutable_settings()->set_policy("sparsebalance");
  request.mutable_settings()->set_lookahead_steps(lookahead);
  uint64_t id = tokens[0].size() + 1;
  for (size_t b = 1; b < tokens.size(); ++b) {
    v1::UpcomingBatch& upcoming = *request.add_upcoming();
    upcoming.set_step(request.step() + b);
    for (const uint64_t n : tokens[b]) {
      v1::Sequence& q = *upcoming.add_sequences();
      q.set_id(id++);
      q.set_tokens(n);
    }
  }
  return request;
}

TEST(Lookahead, LongSequencesOfTwoBatchesAreTrainedTogether) {
  // Each batch has a rank that works for 100 ms and one for 10.
  const v1::PlanRequest request = Batches(2, 2, {{100'000, 10'000}, {100'000, 10'000}});
  const v1::Plan plan = *MakePlan(request);
  ASSERT_EQ(plan.exchanges_size(), 1);
  EXPECT_EQ(plan.exchanges(0).later_step(), 1U);
  EXPECT_EQ(plan.max_displacement_steps(), 1U);
  // 101 + 101 ms become 101 + 11.
  EXPECT_NEAR(plan.lookahead_saved_ms(), 90, 1e-6);
  EXPECT_TRUE(CheckPlan(request, plan).ok()) << CheckPlan(request, plan);
  const std::vector<std::string> words = Explain(request, plan);
  EXPECT_THAT(words, Contains(HasSubstr("which saves 90.000 ms")));
  EXPECT_THAT(words, Contains(HasSubstr("waits until step 1")));
}

TEST(Lookahead, NothingIsMovedForNothing) {
  // Even batches, and a long sequence that is alone of its kind.
  for (const auto& tokens : {std::vector<std::vector<uint64_t>>{{500, 500}, {500, 500}},
                             {{100'000, 10'000}, {10'000, 10'000}}}) {
    const v1::PlanRequest request = Batches(2, 2, tokens);
    const v1::Plan plan = *MakePlan(request);
    EXPECT_TRUE(plan.exchanges().empty());
    EXPECT_EQ(plan.lookahead_saved_ms(), 0);
    EXPECT_THAT(Explain(request, plan), Contains(HasSubstr("found no exchange")));
  }
}

TEST(Lookahead, IsAnOptInOfSparsebalance) {
  v1::PlanRequest request = Batches(2, 2, {{100'000, 10'000}, {100'000, 10'000}});
  for (const char* policy : {"length", "paper", "none", "karmarkar-karp"}) {
    request.mutable_settings()->set_policy(policy);
    EXPECT_TRUE(MakePlan(request)->exchanges().empty()) << policy;
  }
  EXPECT_TRUE(MakeFallbackPlan(request)->exchanges().empty());
}

TEST(Lookahead, ASequenceThatHasWaitedLongEnoughWaitsNoMore) {
  // Only the 10 of this batch would go later, and it has been deferred once already.
  v1::PlanRequest request = Batches(2, 2, {{100'000, 10'000}, {100'000, 10'000}});
  request.mutable_sequences(0)->set_deferred_steps(1);
  request.mutable_sequences(1)->set_deferred_steps(1);
  const v1::Plan plan = *MakePlan(request);
  EXPECT_TRUE(plan.exchanges().empty());
  EXPECT_EQ(plan.max_displacement_steps(), 1U);
  request.mutable_settings()->set_lookahead_steps(3);
  EXPECT_EQ(MakePlan(request)->exchanges_size(), 1);
}

TEST(Lookahead, ExchangesThatFitNoBatchAreRefused) {
  const v1::PlanRequest request = Batches(2, 2, {{100'000, 10'000}, {100'000, 10'000}});
  v1::Plan plan = *MakePlan(request);
  plan.mutable_exchanges(0)->set_now_id(77);
  EXPECT_THAT(std::string(CheckPlan(request, plan).message()), HasSubstr("sequence 77"));
  plan.mutable_exchanges()->Clear();
  EXPECT_FALSE(CheckPlan(request, plan).ok()) << "it trains a sequence of the next batch";
}

TEST(Lookahead, WhatIsWrongWithTheBatchesIsNamed) {
  const auto message = [](const auto& change) {
    v1::PlanRequest request = Batches(2, 3, {{1000, 2000}, {3000}, {4000}});
    change(request);
    return std::string(MakePlan(request).status().message());
  };
  using R = v1::PlanRequest;
  EXPECT_EQ(message([](R&) {}), "");
  EXPECT_THAT(message([](R& r) { r.mutable_settings()->set_lookahead_steps(2); }),
              HasSubstr("upcoming is 2 batches: must have at most lookahead_steps - 1 (1)"));
  EXPECT_THAT(message([](R& r) { r.mutable_settings()->set_lookahead_steps(0); }),
              HasSubstr("at most lookahead_steps - 1 (0)"));
  EXPECT_THAT(message([](R& r) { r.mutable_settings()->set_lookahead_steps(65); }),
              HasSubstr("settings.lookahead_steps is 65"));
  EXPECT_THAT(message([](R& r) { r.mutable_upcoming(1)->set_step(5); }),
              HasSubstr("upcoming[1].step is 5: must be 2"));
  EXPECT_THAT(message([](R& r) { r.mutable_upcoming(0)->mutable_sequences(0)->set_id(1); }),
              HasSubstr("id 1: occurs more than once"));
  EXPECT_THAT(message([](R& r) { r.mutable_upcoming(1)->mutable_sequences(0)->set_tokens(0); }),
              HasSubstr("upcoming[1].sequences[0].tokens is 0"));
}

// An epoch of batches of a random job, planned step by step with what each plan exchanged.
class Epoch {
 public:
  Epoch(uint64_t seed, uint32_t lookahead) : lookahead_(lookahead) {
    std::mt19937_64 random(seed);
    first_ = RandomRequest(seed);
    first_.set_step(0);
    first_.mutable_settings()->clear_policy();
    first_.mutable_settings()->set_micro_batches_per_rank(0);
    first_.mutable_settings()->set_lookahead_steps(lookahead);
    first_.clear_sequences();
    const uint64_t longest = first_.settings().max_tokens_per_micro_batch() / 2;
    uint64_t id = 1;
    for (uint64_t step = 0; step < kSteps; ++step) {
      std::vector<v1::Sequence>& batch = batches_.emplace_back();
      for (uint64_t i = 0; i < kBatch; ++i) {
        v1::Sequence& q = batch.emplace_back();
        q.set_id(id);
        home_[id++] = step;
        q.set_tokens(1 + (random() % 6 == 0 ? longest - random() % (longest / 4) : random() % 300));
      }
    }
  }

  void Run() {
    for (uint64_t step = 0; step < kSteps; ++step) {
      v1::PlanRequest request = first_;
      request.set_step(step);
      request.mutable_sequences()->Add(batches_[step].begin(), batches_[step].end());
      for (uint64_t u = step + 1; u < std::min<uint64_t>(kSteps, step + lookahead_); ++u) {
        v1::UpcomingBatch& upcoming = *request.add_upcoming();
        upcoming.set_step(u);
        upcoming.mutable_sequences()->Add(batches_[u].begin(), batches_[u].end());
      }
      const absl::StatusOr<v1::Plan> plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      Train(request, *plan, step);
    }
    ASSERT_EQ(trained_.size(), home_.size());
    for (const auto& [id, times] : trained_) EXPECT_EQ(times, 1) << "sequence " << id;
  }

  int exchanged() const { return exchanged_; }

 private:
  static constexpr uint64_t kSteps = 8;
  static constexpr uint64_t kBatch = 6;

  void Train(const v1::PlanRequest& request, const v1::Plan& plan, uint64_t step) {
    const v1::PlanRequest trained = *AfterExchanges(request, plan.exchanges());
    ExpectHardConstraints(trained, plan);
    uint64_t furthest = 0;
    for (const v1::Sequence& q : trained.sequences()) {
      ++trained_[q.id()];
      const uint64_t home = home_[q.id()];
      furthest = std::max(furthest, home > step ? home - step : step - home);
    }
    EXPECT_LT(furthest, lookahead_);
    EXPECT_LE(furthest, plan.max_displacement_steps());
    EXPECT_LT(plan.max_displacement_steps(), lookahead_);
    EXPECT_EQ(plan.exchanges().empty(), plan.lookahead_saved_ms() == 0);
    exchanged_ += plan.exchanges_size();
    for (const v1::SequenceExchange& e : plan.exchanges()) {
      auto& later = batches_[e.later_step()];
      const auto from = std::find_if(batches_[step].begin(), batches_[step].end(),
                                     [&](const auto& q) { return q.id() == e.later_id(); });
      const auto to = std::find_if(later.begin(), later.end(),
                                   [&](const auto& q) { return q.id() == e.now_id(); });
      ASSERT_NE(from, batches_[step].end());
      ASSERT_NE(to, later.end());
      from->set_deferred_steps(static_cast<uint32_t>(e.later_step() - home_[e.later_id()]));
      std::swap(*from, *to);
    }
  }

  const uint64_t lookahead_;
  v1::PlanRequest first_;
  std::vector<std::vector<v1::Sequence>> batches_;
  std::map<uint64_t, uint64_t> home_;
  std::map<uint64_t, int> trained_;
  int exchanged_ = 0;
};

TEST(Lookahead, AnEpochTrainsEverySequenceOnceAndNearItsPlace) {
  int exchanged = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Epoch epoch(seed, 2 + seed % 4);
    epoch.Run();
    exchanged += epoch.exchanged();
  }
  EXPECT_GT(exchanged, 20) << "hardly anything was exchanged";
}

}  // namespace
}  // namespace sparsebalance::planner
