#include <limits>

#include "coordinator/planner/digest.h"
#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

class ExchangeTest : public testing::Test {
 protected:
  void SetUp() override { coordinator_.FormPair("job"); }

  static v1::NodeKey A() { return Coordinator::Key("job", "a"); }
  static v1::NodeKey B() { return Coordinator::Key("job", "b"); }

  // Both nodes ask for the step, the plan is made; returns what a got.
  v1::ExchangeStepResponse PlanStep(uint64_t step) {
    const ExchangePending a = coordinator_.Ask(A(), MakeBatch(step));
    const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(step)));
    coordinator_.executor.RunAll();
    EXPECT_TRUE(a.answered() && b.answered());
    EXPECT_TRUE(a.get().ok()) << a.status();
    return a.get().ok() ? a.value() : v1::ExchangeStepResponse();
  }
  absl::StatusOr<v1::GetPlanResponse> GetPlan(uint64_t step) {
    v1::GetPlanRequest request;
    request.mutable_job()->set_name("job");
    request.set_step(step);
    request.set_explain(true);
    return coordinator_.registry->GetPlan(request);
  }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
};

TEST_F(ExchangeTest, AStepIsPlannedOnceWhenEveryNodeHasAsked) {
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  EXPECT_FALSE(b.answered());
  EXPECT_EQ(coordinator_.executor.queued(), 0u);
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  EXPECT_EQ(coordinator_.executor.queued(), 1u);
  EXPECT_FALSE(a.answered());  // planning is not done on the caller's thread
  coordinator_.executor.RunAll();
  ASSERT_TRUE(a.answered() && b.answered());
  ASSERT_TRUE(a.get().ok()) << a.status();
  ASSERT_TRUE(b.get().ok()) << b.status();
  // Each node gets its own rank's part of one plan.
  ASSERT_EQ(a->plan().ranks_size(), 1);
  ASSERT_EQ(b->plan().ranks_size(), 1);
  EXPECT_EQ(a->plan().ranks(0).rank(), 0u);
  EXPECT_EQ(b->plan().ranks(0).rank(), 1u);
  EXPECT_EQ(a->plan_digest(), b->plan_digest());
  EXPECT_EQ(a->plan().global_supervised_tokens(), 800u);
  EXPECT_EQ(a->generation(), 1u);
  EXPECT_EQ(a->leader_epoch(), coordinator_.claims->current());
  EXPECT_EQ(coordinator_.Status("job").next_step(), 1u);
}

TEST_F(ExchangeTest, ARetryGetsTheSameBytes) {
  const v1::ExchangeStepResponse first = PlanStep(0);
  // What was learned since must not change the plan of the step.
  coordinator_.Report(A(), {MakeTelemetry(0, 0, 900)});
  coordinator_.Report(B(), {MakeTelemetry(1, 0, 20)});
  const ExchangePending again = coordinator_.Ask(A(), MakeBatch(0));
  ASSERT_TRUE(again.answered() && again.get().ok());
  EXPECT_EQ(again->plan().SerializeAsString(), first.plan().SerializeAsString());
  EXPECT_EQ(again->plan_digest(), first.plan_digest());
  EXPECT_EQ(coordinator_.executor.queued(), 0u);
}

TEST_F(ExchangeTest, AQuestionOutlivesThePollThatBroughtIt) {
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  coordinator_.scheduler.Advance(absl::Seconds(5));
  ASSERT_TRUE(a.answered());
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.executor.RunAll();
  ASSERT_TRUE(b.answered() && b.get().ok());
  const ExchangePending again = coordinator_.Ask(A(), MakeBatch(0));
  ASSERT_TRUE(again.answered() && again.get().ok());
}

TEST_F(ExchangeTest, ADeadlineNamesTheRanksThatAreMissing) {
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(3)));
  coordinator_.scheduler.Advance(absl::Milliseconds(4'999));
  EXPECT_FALSE(b.answered());
  coordinator_.scheduler.Advance(absl::Milliseconds(1));
  ASSERT_TRUE(b.answered());
  EXPECT_EQ(b.status().code(), absl::StatusCode::kDeadlineExceeded);
  const auto missing = Detail<v1::MissingRanks>(b.status());
  EXPECT_THAT(missing.ranks(), ElementsAre(0));
  EXPECT_EQ(missing.step(), 3u);
  EXPECT_THAT(std::string(b.status().message()), HasSubstr("rank 0 (a)"));
}

TEST_F(ExchangeTest, ADeadlineWhilePlanningNamesNobody) {
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.scheduler.Advance(absl::Seconds(5));
  ASSERT_TRUE(a.answered());
  EXPECT_THAT(Detail<v1::MissingRanks>(a.status()).ranks(), testing::IsEmpty());
  EXPECT_THAT(std::string(a.status().message()), HasSubstr("still being made"));
}

TEST_F(ExchangeTest, BatchesThatDifferAreToldToEveryNodeAndALaterRetryWorks) {
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  const v1::GlobalBatch other = MakeBatch(0, 8, 5'000);
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(other));
  ASSERT_TRUE(a.answered() && b.answered());
  for (const absl::Status& status : {a.status(), b.status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    const auto mismatch = Detail<v1::BatchMismatch>(status);
    EXPECT_THAT(mismatch.node_ids(), ElementsAre("a", "b"));
    EXPECT_THAT(mismatch.digests(), ElementsAre(MakeBatch(0).digest(), other.digest()));
  }
  PlanStep(0);
}

TEST_F(ExchangeTest, ANodeWhosePollHasEndedMayCorrectItsBatch) {
  const ExchangePending wrong = coordinator_.Ask(B(), DigestOnly(MakeBatch(0, 8, 5'000)));
  coordinator_.scheduler.Advance(absl::Seconds(5));
  ASSERT_TRUE(wrong.answered());
  const ExchangePending right = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  EXPECT_FALSE(right.answered());
  coordinator_.Ask(A(), MakeBatch(0));
  coordinator_.executor.RunAll();
  ASSERT_TRUE(right.answered() && right.get().ok());
}

TEST_F(ExchangeTest, ABatchThatDiffersFromThePlannedOneIsRefused) {
  PlanStep(0);
  const ExchangePending late = coordinator_.Ask(B(), DigestOnly(MakeBatch(0, 8, 5'000)));
  ASSERT_TRUE(late.answered());
  EXPECT_EQ(late.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Detail<v1::BatchMismatch>(late.status()).node_ids(), ElementsAre("a", "b"));
}

TEST_F(ExchangeTest, TheNodeOfRankZeroSendsTheBatchWholeAndItsDigestMustMatch) {
  const ExchangePending empty = coordinator_.Ask(A(), DigestOnly(MakeBatch(0)));
  EXPECT_EQ(Detail<v1::FieldViolation>(empty.status()).field(), "batch.sequences");
  v1::GlobalBatch forged = MakeBatch(0);
  forged.mutable_sequences(2)->set_tokens(1);
  forged.mutable_sequences(2)->set_supervised_tokens(0);
  const ExchangePending wrong = coordinator_.Ask(A(), forged);
  EXPECT_EQ(Detail<v1::FieldViolation>(wrong.status()).field(), "batch.digest");
  v1::GlobalBatch twice = MakeBatch(0);
  twice.mutable_sequences(1)->set_id(twice.sequences(0).id());
  twice.set_digest(BatchDigest(twice));
  EXPECT_EQ(Detail<v1::FieldViolation>(coordinator_.Ask(A(), twice).status()).field(),
            "batch.sequences[1].id");
  PlanStep(0);
}

TEST_F(ExchangeTest, TheBatchesThatFollowAreCheckedLikeTheBatchItself) {
  const auto field = [&](const auto& change) {
    v1::GlobalBatch batch = MakeBatch(0);
    v1::FollowingBatch& following = *batch.add_following();
    following.set_step(1);
    *following.mutable_sequences() = MakeBatch(1).sequences();
    for (v1::BatchSequence& sequence : *following.mutable_sequences()) {
      sequence.set_id(sequence.id() + 1'000'000);
    }
    change(batch, following);
    batch.set_digest(BatchDigest(batch));
    const ExchangePending asked = coordinator_.Ask(A(), batch);
    return asked.answered() ? Detail<v1::FieldViolation>(asked.status()).field() : "";
  };
  using B = v1::GlobalBatch;
  using F = v1::FollowingBatch;
  EXPECT_EQ(field([](B&, F& f) { f.set_step(2); }), "batch.following[0].step");
  EXPECT_EQ(field([](B& b, F& f) { f.mutable_sequences(1)->set_id(b.sequences(0).id()); }),
            "batch.following[0].sequences[1].id");
  EXPECT_EQ(field([](B&, F& f) { f.mutable_sequences(0)->set_tokens(0); }),
            "batch.following[0].sequences[0].tokens");
  EXPECT_EQ(field([](B& b, F&) {
              for (int i = 0; i < 64; ++i) b.add_following();
            }),
            "batch.following");
  EXPECT_EQ(field([](B&, F&) {}), "");
}

TEST_F(ExchangeTest, ASequenceLongerThanTheCapIsRefusedByItsName) {
  v1::GlobalBatch batch = MakeBatch(0);
  batch.mutable_sequences(3)->set_tokens(5'000);
  batch.set_digest(BatchDigest(batch));
  const ExchangePending a = coordinator_.Ask(A(), batch);
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(batch));
  coordinator_.executor.RunAll();
  for (const ExchangePending* pending : {&a, &b}) {
    ASSERT_TRUE(pending->answered());
    EXPECT_EQ(pending->status().code(), absl::StatusCode::kInvalidArgument);
    const auto rejected = Detail<v1::SequenceRejected>(pending->status());
    EXPECT_EQ(rejected.sequence_id(), batch.sequences(3).id());
    EXPECT_EQ(rejected.tokens(), 5'000u);
    EXPECT_EQ(rejected.limit_tokens(), 4'096u);
    EXPECT_EQ(rejected.job().name(), "job");
  }
  // The same batch again is the same refusal, at once; another one is planned.
  const ExchangePending again = coordinator_.Ask(A(), batch);
  ASSERT_TRUE(again.answered());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kInvalidArgument);
  PlanStep(0);
}

TEST_F(ExchangeTest, TelemetryThatIsNoNumberIsRefusedByFieldWithoutEffect) {
  struct Case {
    const char* field;
    void (*spoil)(v1::RankTelemetry&);
  };
  const Case cases[] = {
      {"telemetry[1].step_ms",
       [](auto& t) { t.set_step_ms(std::numeric_limits<double>::quiet_NaN()); }},
      {"telemetry[1].compute_ms", [](auto& t) { t.set_compute_ms(-1); }},
      {"telemetry[1].idle_ms", [](auto& t) { t.set_idle_ms(1e300); }},
      {"telemetry[1].loss_sum",
       [](auto& t) { t.set_loss_sum(std::numeric_limits<double>::infinity()); }},
      {"telemetry[1].micro_batches[0].backward_ms",
       [](auto& t) {
         t.mutable_micro_batches(0)->set_backward_ms(std::numeric_limits<double>::quiet_NaN());
       }},
      {"telemetry[1].micro_batches[0].sequences[0].tokens",
       [](auto& t) { t.mutable_micro_batches(0)->mutable_sequences(0)->set_tokens(0); }},
      {"telemetry[1].micro_batches[0].sequences[0].coverage.coverage[1]",
       [](auto& t) {
         t.mutable_micro_batches(0)->mutable_sequences(0)->mutable_coverage()->set_coverage(1, 2);
       }},
  };
  const std::string before = coordinator_.Status("job").latency().SerializeAsString();
  for (const Case& c : cases) {
    v1::RankTelemetry good = MakeTelemetry(0, 0);
    v1::RankTelemetry bad = MakeTelemetry(0, 1);
    c.spoil(bad);
    const ExchangePending report = coordinator_.Report(A(), {good, bad});
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_EQ(Detail<v1::FieldViolation>(report.status()).field(), c.field);
  }
  const v1::JobStatus status = coordinator_.Status("job");
  EXPECT_EQ(status.latency().SerializeAsString(), before);
  EXPECT_EQ(status.remembered_sequences(), 0u);
  EXPECT_EQ(status.latency_source(), "default");
}

TEST_F(ExchangeTest, TelemetryOfAnotherNodesRankIsRefused) {
  const ExchangePending report = coordinator_.Report(A(), {MakeTelemetry(1, 0)});
  EXPECT_EQ(Detail<v1::FieldViolation>(report.status()).field(), "telemetry[0].rank");
}

TEST_F(ExchangeTest, ReportsBecomeFinishedStepsOnceAllRanksAreHeard) {
  const v1::ExchangeStepResponse planned = PlanStep(0);
  coordinator_.Report(A(), {MakeTelemetry(0, 0, 30)});
  EXPECT_EQ(coordinator_.Status("job").steps_reported(), 0u);
  coordinator_.Report(A(), {MakeTelemetry(0, 0, 30)});  // a retry
  coordinator_.Report(B(), {MakeTelemetry(1, 0, 90)});
  const v1::JobStatus status = coordinator_.Status("job");
  ASSERT_EQ(status.recent_steps_size(), 1);
  const v1::StepStatus& step = status.recent_steps(0);
  EXPECT_DOUBLE_EQ(step.rank_imbalance(), 1.5);
  EXPECT_EQ(step.slowest_rank(), 1u);
  EXPECT_DOUBLE_EQ(step.loss(), 3.0);
  EXPECT_EQ(step.tokens(), 1024u);
  EXPECT_EQ(step.sequences(), 8u);
  EXPECT_EQ(step.policy(), "sparsebalance");
  EXPECT_DOUBLE_EQ(step.predicted_step_ms(), planned.plan().predicted_step_ms());
  EXPECT_GE(step.length_imbalance(), 1.0);
  EXPECT_EQ(status.latency_source(), "learned");
  EXPECT_EQ(status.remembered_sequences(), 2u);
  EXPECT_EQ(status.ranks(1).last_step(), 0u);
}

TEST_F(ExchangeTest, AFallbackStepIsCountedAndHasNoPrediction) {
  PlanStep(0);
  for (uint32_t rank : {0u, 1u}) {
    v1::RankTelemetry report = MakeTelemetry(rank, 0);
    report.set_used_fallback(true);
    coordinator_.Report(rank == 0 ? A() : B(), {report});
  }
  const v1::JobStatus status = coordinator_.Status("job");
  EXPECT_EQ(status.fallback_steps(), 1u);
  EXPECT_EQ(status.recent_steps(0).policy(), "length");
  EXPECT_EQ(status.recent_steps(0).predicted_step_ms(), 0.0);
}

TEST_F(ExchangeTest, AFullPlanningQueueShedsWithAHintAndTheNextCallPlans) {
  coordinator_.executor.set_capacity(0);
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  ASSERT_TRUE(a.answered() && b.answered());
  EXPECT_EQ(a.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(Detail<v1::RetryLater>(b.status()).retry_after_ms(), 0u);
  coordinator_.executor.set_capacity(10);
  const ExchangePending again = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.executor.RunAll();
  ASSERT_TRUE(again.answered() && again.get().ok());
}

TEST_F(ExchangeTest, ACallerThatGoesAwayIsForgottenAndTheRestGoOn) {
  ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  a.cancel();
  EXPECT_EQ(a.status().code(), absl::StatusCode::kCancelled);
  const ExchangePending b = coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.executor.RunAll();
  EXPECT_TRUE(b.get().ok());
  a.cancel();  // again: nothing happens
}

TEST_F(ExchangeTest, APlanThatIsReadyAfterTheGenerationEndedIsThrownAway) {
  const ExchangePending a = coordinator_.Ask(A(), MakeBatch(0));
  coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.Join("job", "b", {1}, 2);
  ASSERT_TRUE(a.answered());
  EXPECT_EQ(a.status().code(), absl::StatusCode::kAborted);
  coordinator_.executor.RunAll();
  EXPECT_EQ(GetPlan(0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ExchangeTest, PlansCanBeReadWholeWithWordsAndTheRequestTheyWereMadeFrom) {
  PlanStep(4);
  const auto plan = GetPlan(4);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan().ranks_size(), 2);
  EXPECT_EQ(plan->request().sequences_size(), 8);
  EXPECT_EQ(plan->plan_digest(), planner::Digest(plan->plan()));
  EXPECT_FALSE(plan->explanation().empty());
  const auto missing = GetPlan(5);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("it keeps step 4"));
}

TEST_F(ExchangeTest, AStepWhosePlanIsGoneIsNotPlannedASecondTime) {
  MemoryStore store;
  ServiceOptions options;
  options.kept_plans = 2;
  Coordinator small(&store, options);
  small.FormPair("job");
  for (uint64_t step = 0; step < 4; ++step) {
    small.Ask(A(), MakeBatch(step));
    small.Ask(B(), DigestOnly(MakeBatch(step)));
    small.executor.RunAll();
  }
  const ExchangePending again = small.Ask(A(), MakeBatch(0));
  ASSERT_TRUE(again.answered());
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(small.Ask(A(), MakeBatch(3)).answered());
}

TEST_F(ExchangeTest, WhoeverStillHoldsAJobThatHasEndedMayOutliveThePlanner) {
  coordinator_.Ask(B(), DigestOnly(MakeBatch(0)));
  coordinator_.Ask(A(), MakeBatch(0));
  coordinator_.registry.reset();
  ASSERT_EQ(coordinator_.executor.queued(), 1u) << "a task that holds the job";
  EXPECT_EQ(coordinator_.executor.open_flows(), 0u) << "the job would end it when it is let go";
}

TEST_F(ExchangeTest, StepsTrainedWithoutAPlanDoNotPileUp) {
  // a asks for step after step; b trains by its fallback and never asks.
  for (uint64_t step = 0; step < 40; ++step) {
    const ExchangePending a = coordinator_.Ask(A(), MakeBatch(step));
    coordinator_.scheduler.Advance(absl::Seconds(5));
    ASSERT_EQ(a.status().code(), absl::StatusCode::kDeadlineExceeded) << a.status();
    ASSERT_TRUE(coordinator_.Heartbeat(B()).ok());
  }
}

TEST_F(ExchangeTest, CoverageFromACheckpointFillsGapsOnly) {
  coordinator_.Report(A(), {MakeTelemetry(0, 0)});  // sequence 0, 512 tokens
  v1::PutCoverageRequest request;
  *request.mutable_node() = A();
  for (const uint64_t id : {0u, 1u, 2u}) {
    v1::SequenceCoverage* entry = request.add_entries();
    entry->set_sequence_id(id);
    entry->set_tokens(512);
    for (const auto& [budget, coverage] : {std::pair{1u, 0.0}, {8u, 1.0}}) {
      entry->mutable_coverage()->add_budget_blocks(budget);
      entry->mutable_coverage()->add_coverage(coverage);
    }
  }
  const auto answer = coordinator_.registry->PutCoverage(request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->accepted(), 2u);
  EXPECT_EQ(answer->already_known(), 1u);
  request.mutable_entries(1)->mutable_coverage()->set_budget_blocks(0, 2);
  const auto refused = coordinator_.registry->PutCoverage(request);
  EXPECT_EQ(Detail<v1::FieldViolation>(refused.status()).field(), "entries[1].coverage");
}

TEST_F(ExchangeTest, ANewProfileIsTakenUpByJobsWithoutTelemetryOnly) {
  v1::PutProfileRequest put;
  v1::LatencyProfile* profile = put.mutable_profile();
  profile->mutable_key()->set_device_class("cpu-1-thread");
  profile->mutable_key()->set_model_class("tiny");
  profile->mutable_model()->set_per_token_ms(0.5);
  profile->mutable_model()->set_forward_fraction(0.3);
  profile->mutable_model()->set_block_tokens(64);
  profile->set_source("measured by a test");
  auto answer = coordinator_.registry->PutProfile(put);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->replaced());
  EXPECT_EQ(coordinator_.Status("job").latency_source(), "profile");
  coordinator_.Report(A(), {MakeTelemetry(0, 0)});
  profile->mutable_model()->set_per_token_ms(5);
  answer = coordinator_.registry->PutProfile(put);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->replaced());
  EXPECT_EQ(coordinator_.Status("job").latency_source(), "learned");
  v1::GetProfileRequest get;
  *get.mutable_key() = profile->key();
  EXPECT_EQ(coordinator_.registry->GetProfile(get)->profile().model().per_token_ms(), 5);
  get.mutable_key()->set_model_class("other");
  EXPECT_EQ(coordinator_.registry->GetProfile(get).status().code(), absl::StatusCode::kNotFound);
  profile->mutable_model()->set_per_token_ms(-1);
  EXPECT_EQ(Detail<v1::FieldViolation>(coordinator_.registry->PutProfile(put).status()).field(),
            "profile.model.per_token_ms");
}

}  // namespace
}  // namespace sparsebalance
