// The planner's face: errors with their details, fallback plans, slices and digests.

#include "coordinator/planner/planner.h"

#include <limits>
#include <string>

#include "coordinator/planner/digest.h"
#include "coordinator/planner/explain.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/planner/test_jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ViolatedField(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const auto detail = GetDetail<v1::FieldViolation>(status);
  return detail.has_value() ? detail->field() : "no FieldViolation";
}

TEST(Digest, IsTheFirstEightBytesOfSha256BigEndian) {
  // SHA-256 of nothing begins e3b0c442 98fc1c14.
  EXPECT_EQ(Digest(v1::Plan()), 0xe3b0c44298fc1c14U);
  v1::Plan plan;
  plan.set_step(1);
  EXPECT_NE(Digest(plan), Digest(v1::Plan()));
}

TEST(StatusPayload, GivesBackWhatWasAttached) {
  absl::Status status = absl::AbortedError("stale");
  EXPECT_FALSE(GetDetail<v1::StaleMember>(status).has_value());
  v1::StaleMember detail;
  detail.set_current_generation(7);
  AttachDetail(status, detail);
  EXPECT_EQ(GetDetail<v1::StaleMember>(status)->current_generation(), 7U);
  EXPECT_TRUE(status.GetPayload("type.googleapis.com/sparsebalance.v1.StaleMember").has_value());
}

TEST(Policies, AreFive) {
  EXPECT_THAT(PolicyNames(),
              ElementsAre("none", "length", "karmarkar-karp", "paper", "sparsebalance"));
}

TEST(ValidateSettings, NamesTheFieldThatIsWrong) {
  const v1::PlanSettings good = LinearRequest(2, {1}).settings();
  ASSERT_TRUE(ValidateSettings(good).ok());
  const auto field = [&](const auto& change) {
    v1::PlanSettings settings = good;
    change(settings);
    return ViolatedField(ValidateSettings(settings));
  };
  using S = v1::PlanSettings;
  EXPECT_EQ(field([](S& s) { s.set_policy("best"); }), "settings.policy");
  EXPECT_EQ(field([](S& s) { s.set_data_parallel_size(0); }), "settings.data_parallel_size");
  EXPECT_EQ(field([](S& s) { s.set_block_tokens(0); }), "settings.block_tokens");
  EXPECT_EQ(field([](S& s) { s.set_base_budget_blocks(0); }), "settings.base_budget_blocks");
  EXPECT_EQ(field([](S& s) { s.set_min_budget_blocks(9); }), "settings.base_budget_blocks");
  EXPECT_EQ(field([](S& s) { s.set_max_budget_blocks(3); }), "settings.base_budget_blocks");
  EXPECT_EQ(field([](S& s) {
              s.set_min_budget_blocks(4);
              s.set_max_budget_blocks(3);
            }),
            "settings.max_budget_blocks");
  EXPECT_EQ(field([](S& s) { s.set_max_tokens_per_micro_batch(0); }),
            "settings.max_tokens_per_micro_batch");
  EXPECT_EQ(field([](S& s) { s.set_coverage_guard(1.5); }), "settings.coverage_guard");
  EXPECT_EQ(field([](S& s) { s.set_coverage_guard(std::numeric_limits<double>::quiet_NaN()); }),
            "settings.coverage_guard");
  EXPECT_EQ(field([](S& s) { s.mutable_coverage_floor()->set_value(-0.1); }),
            "settings.coverage_floor.value");
  EXPECT_EQ(field([](S& s) {
              s.mutable_coverage_floor()->set_mode(static_cast<v1::CoverageFloorMode>(9));
            }),
            "settings.coverage_floor.mode");
  EXPECT_EQ(field([](S& s) { s.set_paper_anchor(static_cast<v1::PaperAnchor>(9)); }),
            "settings.paper_anchor");
}

TEST(ValidateRequest, NamesTheFieldThatIsWrong) {
  const v1::PlanRequest good = LinearRequest(2, {1000, 2000});
  const auto field = [&](const auto& change) {
    v1::PlanRequest request = good;
    change(request);
    return ViolatedField(MakePlan(request).status());
  };
  using R = v1::PlanRequest;
  EXPECT_EQ(field([](R& r) { r.mutable_sequences(1)->set_id(1); }), "sequences");
  EXPECT_EQ(field([](R& r) { r.mutable_sequences(1)->set_tokens(0); }), "sequences[1].tokens");
  EXPECT_EQ(field([](R& r) { r.mutable_sequences(0)->set_supervised_tokens(1001); }),
            "sequences[0].supervised_tokens");
  EXPECT_EQ(field([](R& r) {
              r.mutable_sequences(0)->mutable_coverage()->add_budget_blocks(2);
              r.mutable_sequences(0)->mutable_coverage()->add_coverage(0.5);
            }),
            "sequences[0].coverage");
  EXPECT_EQ(field([](R& r) { r.mutable_latency()->set_per_token_ms(-1); }), "latency.per_token_ms");
  EXPECT_EQ(field([](R& r) { r.mutable_latency()->set_forward_fraction(0); }),
            "latency.forward_fraction");
  EXPECT_EQ(field([](R& r) {
              r.mutable_latency()->set_constant_ms(std::numeric_limits<double>::infinity());
            }),
            "latency.constant_ms");
  EXPECT_EQ(field([](R& r) { r.mutable_latency()->set_per_token_ms(1e6); }), "latency");
  EXPECT_EQ(field([](R& r) { r.add_rank_factors()->set_rank(2); }), "rank_factors[0].rank");
  EXPECT_EQ(field([](R& r) { r.add_rank_factors()->set_time_factor(0); }),
            "rank_factors[0].time_factor");
  EXPECT_EQ(field([](R& r) {
              r.add_rank_factors()->set_time_factor(1);
              r.add_rank_factors()->set_time_factor(1);
            }),
            "rank_factors");
}

TEST(MakePlan, RefusesASequenceThatFitsNoMicroBatchByName) {
  for (const std::string& policy : PolicyNames()) {
    v1::PlanRequest request = LinearRequest(2, {10, 1001, 20});
    request.mutable_settings()->set_policy(policy);
    request.mutable_settings()->set_max_tokens_per_micro_batch(1000);
    const absl::Status status = MakePlan(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const auto detail = GetDetail<v1::SequenceRejected>(status);
    ASSERT_TRUE(detail.has_value()) << status;
    EXPECT_EQ(detail->sequence_id(), 2U);
    EXPECT_EQ(detail->tokens(), 1001U);
    EXPECT_EQ(detail->limit_tokens(), 1000U);
    EXPECT_THAT(std::string(status.message()), HasSubstr("sequence 2 has 1001 tokens"));
  }
}

TEST(MakePlan, PaddingCountsAgainstTheCap) {
  v1::PlanRequest request = LinearRequest(1, {990});
  request.mutable_settings()->set_max_tokens_per_micro_batch(1000);
  EXPECT_TRUE(MakePlan(request).ok());
  request.mutable_settings()->set_padding_multiple(64);
  EXPECT_TRUE(GetDetail<v1::SequenceRejected>(MakePlan(request).status()).has_value());
}

TEST(MakePlan, SaysInfeasibleWhereTheCapContradictsAFixedCount) {
  for (const std::string& policy : PolicyNames()) {
    v1::PlanRequest request = LinearRequest(2, {600, 600, 600, 600, 600});
    request.set_step(9);
    request.mutable_settings()->set_policy(policy);
    request.mutable_settings()->set_max_tokens_per_micro_batch(1000);
    request.mutable_settings()->set_micro_batches_per_rank(2);
    const absl::Status status = MakePlan(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << policy << ": " << status;
    const auto detail = GetDetail<v1::InfeasiblePlan>(status);
    ASSERT_TRUE(detail.has_value()) << policy;
    EXPECT_EQ(detail->step(), 9U);
    EXPECT_THAT(std::string(status.message()), HasSubstr("INFEASIBLE"));
    request.mutable_settings()->set_micro_batches_per_rank(3);
    EXPECT_TRUE(MakePlan(request).ok()) << policy;
  }
}

TEST(MakePlan, FindsAPackingThatNeedsEveryToken) {
  // Two micro-batches of 100: only 60 + 40 and 50 + 30 + 20 fit; longest first does not find it
  // when it balances, best fit does.
  for (const std::string& policy : PolicyNames()) {
    v1::PlanRequest request = LinearRequest(1, {60, 50, 40, 30, 20});
    request.mutable_settings()->set_policy(policy);
    request.mutable_settings()->set_max_tokens_per_micro_batch(100);
    request.mutable_settings()->set_micro_batches_per_rank(2);
    EXPECT_TRUE(MakePlan(request).ok()) << policy << ": " << MakePlan(request).status();
  }
}

TEST(MakePlan, TriesAllPackingsWhereTheQuickOnesFail) {
  // 60 tokens for three micro-batches of 20. Best fit begins 13 + 7, 11 + 8, 10 + 5 + 4 and is left
  // with 2; only 13 + 7, 11 + 5 + 4 and 10 + 8 + 2 have room for all.
  for (const uint32_t ranks : {1U, 3U}) {
    v1::PlanRequest request = LinearRequest(ranks, {13, 11, 10, 8, 7, 5, 4, 2});
    request.mutable_settings()->set_max_tokens_per_micro_batch(20);
    request.mutable_settings()->set_micro_batches_per_rank(3 / ranks);
    EXPECT_TRUE(MakePlan(request).ok()) << MakePlan(request).status();
    request.mutable_sequences(7)->set_tokens(3);
    EXPECT_FALSE(MakePlan(request).ok());
  }
}

TEST(MakePlan, AcceptsAnyCountOfSequences) {
  for (const std::string& policy : PolicyNames()) {
    for (const size_t count : {0U, 1U, 3U, 206U}) {
      for (const uint32_t size : {0U, 1U, 4U}) {
        v1::PlanRequest request = LinearRequest(4, std::vector<uint64_t>(count, 700));
        request.mutable_settings()->set_policy(policy);
        request.mutable_settings()->set_micro_batch_size(size);
        request.mutable_settings()->set_max_tokens_per_micro_batch(3000);
        const auto plan = MakePlan(request);
        ASSERT_TRUE(plan.ok()) << policy << ": " << plan.status();
        EXPECT_EQ(plan->ranks_size(), 4);
        size_t planned = 0;
        for (const v1::RankPlan& rank : plan->ranks()) {
          for (const v1::MicroBatch& mb : rank.micro_batches()) planned += mb.slices_size();
        }
        EXPECT_EQ(planned, count);
      }
    }
  }
}

TEST(MakePlan, FillsCommonCountsWithZeroWeightMicroBatches) {
  for (const std::string& policy : PolicyNames()) {
    v1::PlanRequest request = LinearRequest(3, {900, 900, 900, 900});
    request.mutable_settings()->set_policy(policy);
    request.mutable_settings()->set_max_tokens_per_micro_batch(1000);
    request.mutable_settings()->set_equal_micro_batch_count(true);
    const auto plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << policy << ": " << plan.status();
    int zero = 0;
    for (const v1::RankPlan& rank : plan->ranks()) {
      EXPECT_EQ(rank.micro_batches_size(), 2) << policy;
      for (const v1::MicroBatch& mb : rank.micro_batches()) {
        zero += mb.zero_weight() ? 1 : 0;
        if (mb.zero_weight()) {
          EXPECT_NEAR(mb.predicted_ms(), 1.001, 1e-9);
        }
      }
    }
    EXPECT_EQ(zero, 2) << policy;
  }
}

TEST(MakePlan, EmptyPolicyReadsAsSparseBalanceAndIsNamed) {
  v1::PlanRequest request = LinearRequest(2, {100, 200, 300});
  request.mutable_settings()->clear_policy();
  EXPECT_EQ(MakePlan(request)->policy(), "sparsebalance");
}

TEST(MakePlan, WithoutALatencyModelTheDefaultIsUsed) {
  v1::PlanRequest request = LinearRequest(2, {100, 200, 300});
  request.clear_latency();
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->predicted_step_ms(), 0);
}

TEST(MakePlan, ABudgetIsNeverBelowTheLeastOneEvenWhereASequenceIsShorter) {
  v1::PlanRequest request = LinearRequest(1, {50, 1000});
  request.mutable_settings()->set_min_budget_blocks(3);
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok());
  for (const v1::Slice& s : plan->ranks(0).micro_batches(0).slices()) {
    EXPECT_EQ(s.budget_blocks(), s.sequence_id() == 1 ? 3U : 4U);
  }
}

TEST(MakePlan, TheStepConstantIsAddedAndChangesNothingElse) {
  v1::PlanRequest request = RandomRequest(5);
  request.mutable_settings()->set_policy("sparsebalance");
  request.mutable_latency()->set_step_constant_ms(0);
  const v1::Plan without = *MakePlan(request);
  request.mutable_latency()->set_step_constant_ms(20);
  v1::Plan with = *MakePlan(request);
  EXPECT_NEAR(with.predicted_step_ms(), without.predicted_step_ms() + 20, 1e-9);
  EXPECT_NEAR(with.lower_bound_ms(), without.lower_bound_ms() + 20, 1e-9);
  EXPECT_NEAR(with.length_policy_step_ms(), without.length_policy_step_ms() + 20, 1e-9);
  with.set_predicted_step_ms(without.predicted_step_ms());
  with.set_lower_bound_ms(without.lower_bound_ms());
  with.set_length_policy_step_ms(without.length_policy_step_ms());
  EXPECT_EQ(with.SerializeAsString(), without.SerializeAsString());
}

TEST(MakeFallbackPlan, DependsOnTokensAndSettingsAlone) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    v1::PlanRequest request = RandomRequest(seed);
    request.clear_rank_factors();
    const auto plan = MakeFallbackPlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->policy(), "length");
    EXPECT_EQ(plan->fallback(), v1::FALLBACK_REASON_NO_PLAN);
    EXPECT_EQ(plan->predicted_step_ms(), 0);
    v1::PlanRequest other = request;
    other.mutable_settings()->set_policy("paper");
    other.mutable_latency()->set_per_token_ms(123);
    other.clear_latency();
    other.add_rank_factors()->set_time_factor(3);
    for (v1::Sequence& s : *other.mutable_sequences()) s.clear_coverage();
    EXPECT_EQ(SerializeDeterministically(*MakeFallbackPlan(other)),
              SerializeDeterministically(*plan));
  }
}

TEST(PlanForRanks, KeepsTheFieldsOfTheWholePlan) {
  const v1::Plan plan = *MakePlan(LinearRequest(4, {100, 200, 300, 400, 500}));
  v1::Plan part = PlanForRanks(plan, {1, 3});
  ASSERT_EQ(part.ranks_size(), 2);
  EXPECT_EQ(part.ranks(0).SerializeAsString(), plan.ranks(1).SerializeAsString());
  EXPECT_EQ(part.ranks(1).SerializeAsString(), plan.ranks(3).SerializeAsString());
  *part.mutable_ranks() = plan.ranks();
  EXPECT_EQ(part.SerializeAsString(), plan.SerializeAsString());
}

TEST(CheckPlan, SeesEveryKindOfBreach) {
  v1::PlanRequest request = LinearRequest(2, {900, 800, 700, 600});
  request.mutable_settings()->set_max_tokens_per_micro_batch(1600);
  request.mutable_settings()->set_equal_micro_batch_count(true);
  request.mutable_settings()->set_max_budget_blocks(6);
  const v1::Plan good = *MakePlan(request);
  ASSERT_TRUE(CheckPlan(request, good).ok());
  const auto problem = [&](const auto& change) {
    v1::Plan plan = good;
    change(plan);
    return std::string(CheckPlan(request, plan).message());
  };
  using P = v1::Plan;
  const auto slice = [](P& p, int rank) {
    return p.mutable_ranks(rank)->mutable_micro_batches(0)->mutable_slices(0);
  };
  EXPECT_THAT(problem([](P& p) { p.mutable_ranks()->RemoveLast(); }), HasSubstr("1 ranks"));
  EXPECT_THAT(problem([](P& p) { p.mutable_ranks(0)->set_rank(1); }), HasSubstr("holds rank 1"));
  EXPECT_THAT(problem([](P& p) {
                p.mutable_ranks(0)->mutable_micro_batches(0)->mutable_slices()->RemoveLast();
              }),
              HasSubstr("is missing"));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->set_sequence_id(slice(p, 1)->sequence_id()); }),
              AnyOf(HasSubstr("planned twice"), HasSubstr("is cut")));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->set_sequence_id(77); }), HasSubstr("77 is not in"));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->set_token_begin(1); }), HasSubstr("is cut to [1"));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->set_budget_blocks(7); }), HasSubstr("budget 7"));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->set_budget_blocks(1); }), HasSubstr("budget 1"));
  EXPECT_THAT(problem([&](P& p) { slice(p, 0)->add_layer_budget_blocks(1); }),
              HasSubstr("one budget for all layers"));
  EXPECT_THAT(problem([](P& p) { p.mutable_ranks(0)->add_micro_batches()->set_zero_weight(true); }),
              HasSubstr("micro-batches"));
  EXPECT_THAT(
      problem([](P& p) { p.mutable_ranks(0)->mutable_micro_batches(0)->set_zero_weight(true); }),
      HasSubstr("zero_weight set"));
  EXPECT_THAT(problem([](P& p) {
                auto& to = *p.mutable_ranks(0)->mutable_micro_batches(0);
                auto& from = *p.mutable_ranks(1)->mutable_micro_batches(0);
                *to.add_slices() = from.slices(0);
                from.mutable_slices()->DeleteSubrange(0, 1);
              }),
              HasSubstr("padded tokens, its cap is 1600"));
}

TEST(Explain, NamesWhatAPersonNeeds) {
  v1::PlanRequest request = LinearRequest(2, {9000, 500, 400, 300});
  request.mutable_settings()->set_policy("sparsebalance");
  request.mutable_latency()->set_step_constant_ms(2);
  request.mutable_latency()->set_max_tokens(5000);
  v1::RankFactor& f = *request.add_rank_factors();
  f.set_rank(0);
  f.set_time_factor(1.25);
  f.set_token_factor(1);
  v1::RankFactor& g = *request.add_rank_factors();
  g.set_rank(1);
  g.set_time_factor(1.25);
  const v1::Plan plan = *MakePlan(request);
  const std::vector<std::string> words = Explain(request, plan);
  EXPECT_THAT(words, Contains(HasSubstr("policy `sparsebalance`: 4 sequences on 2")));
  EXPECT_THAT(words, Contains(HasSubstr("its longest is sequence 1 (9000 tokens")));
  EXPECT_THAT(words, Contains(HasSubstr("1.25 times the model's time")));
  EXPECT_THAT(words, Contains(HasSubstr("The policy `length`")));
  EXPECT_THAT(words, Contains(HasSubstr("Mean coverage is")));
  EXPECT_THAT(words, Contains(HasSubstr("No plan within the same constraints takes less than")));
  EXPECT_THAT(words, Contains(HasSubstr("Sequence 1 with its 9000 tokens limits the step")));
  EXPECT_THAT(words, Contains(HasSubstr("1 sequences are predicted outside")));
}

TEST(Explain, SaysWhyAFallbackWasUsed) {
  v1::PlanRequest request = LinearRequest(2, {9000, 5000, 4000, 3000});
  request.mutable_settings()->set_policy("sparsebalance");
  request.mutable_settings()->set_max_budget_blocks(6);
  request.mutable_settings()->mutable_coverage_floor()->set_value(1.0);
  const v1::Plan plan = *MakePlan(request);
  EXPECT_EQ(plan.fallback(), v1::FALLBACK_REASON_FLOOR_UNREACHABLE);
  EXPECT_EQ(plan.mean_coverage(), plan.baseline_mean_coverage());
  EXPECT_THAT(Explain(request, plan), Contains(HasSubstr("FALLBACK_REASON_FLOOR_UNREACHABLE")));
}

TEST(Explain, DoesNotFailOnARequestThatIsWrong) {
  EXPECT_THAT(Explain(v1::PlanRequest(), v1::Plan()),
              ElementsAre(HasSubstr("The plan cannot be explained")));
}

}  // namespace
}  // namespace sparsebalance::planner
