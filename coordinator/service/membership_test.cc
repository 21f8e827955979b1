#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

class MembershipTest : public testing::Test {
 protected:
  v1::JoinJobRequest JoinWithVersion(const std::string& node, uint32_t rank,
                                     const std::string& version, uint64_t incarnation = 1) {
    v1::JoinJobRequest request = coordinator_.JoinRequest("job", node, {rank}, incarnation);
    request.set_client_version(version);
    return request;
  }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
};

TEST_F(MembershipTest, ANodeWaitsUntilAllRanksAreIn) {
  coordinator_.Register(MakeSpec("job", 3));
  const JoinPending a = coordinator_.Join("job", "a", {0, 2});
  EXPECT_FALSE(a.answered());
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_JOINING);
  EXPECT_THAT(coordinator_.Status("job").missing_ranks(), ElementsAre(1));
  const JoinPending b = coordinator_.Join("job", "b", {1});
  ASSERT_TRUE(a.answered() && b.answered());
  ASSERT_TRUE(a.get().ok()) << a.status();
  EXPECT_EQ(a->generation(), 1u);
  EXPECT_EQ(b->generation(), 1u);
  ASSERT_EQ(a->members_size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(a->members(rank).rank(), static_cast<uint32_t>(rank));
    EXPECT_EQ(a->members(rank).node_id(), rank == 1 ? "b" : "a");
  }
  EXPECT_EQ(a->members(2).rendezvous(), "a/2#1");
  EXPECT_EQ(a->lease_ms(), 10'000u);
  EXPECT_LT(a->heartbeat_ms(), a->lease_ms() / 2);
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_TRAINING);
}

TEST_F(MembershipTest, ANodeOfAnotherVersionWaitsUntilTheOthersAreExchangedToo) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending a = coordinator_.Join(JoinWithVersion("a", 0, "worker 1.0"));
  const JoinPending b = coordinator_.Join(JoinWithVersion("b", 1, "worker 1.1"));
  ASSERT_TRUE(b.answered());
  EXPECT_EQ(b.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GT(Detail<v1::RetryLater>(b.status()).retry_after_ms(), 0u);
  EXPECT_THAT(std::string(b.status().message()),
              HasSubstr("node b runs worker 1.1 and node a worker 1.0"));
  EXPECT_FALSE(a.answered());
  // Node a comes back as the version of b, which now may join.
  const JoinPending exchanged = coordinator_.Join(JoinWithVersion("a", 0, "worker 1.1", 2));
  const JoinPending again = coordinator_.Join(JoinWithVersion("b", 1, "worker 1.1"));
  ASSERT_TRUE(exchanged.answered() && again.answered());
  EXPECT_TRUE(exchanged.get().ok()) << exchanged.status();
  EXPECT_TRUE(again.get().ok()) << again.status();
  EXPECT_EQ(coordinator_.Status("job").ranks(1).client_version(), "worker 1.1");
}

TEST_F(MembershipTest, ANodeOfAnotherVersionDoesNotEndTheGenerationOfTheOthers) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending a = coordinator_.Join(JoinWithVersion("a", 0, "worker 1.0"));
  const JoinPending b = coordinator_.Join(JoinWithVersion("b", 1, "worker 1.0"));
  ASSERT_TRUE(a.answered() && a.get().ok());
  const JoinPending replaced = coordinator_.Join(JoinWithVersion("b", 1, "worker 1.1", 2));
  EXPECT_EQ(replaced.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_TRAINING);
}

TEST_F(MembershipTest, ClientsThatDoNotSayTheirVersionJoinAll) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending a = coordinator_.Join(JoinWithVersion("a", 0, "worker 1.0"));
  const JoinPending b = coordinator_.Join(JoinWithVersion("b", 1, ""));
  ASSERT_TRUE(a.answered() && b.answered());
  EXPECT_TRUE(a.get().ok() && b.get().ok());
}

TEST_F(MembershipTest, ADeadNodeOfAnotherVersionKeepsNobodyOut) {
  coordinator_.Register(MakeSpec("job"));
  JoinPending a = coordinator_.Join(JoinWithVersion("a", 0, "worker 1.0"));
  a.cancel();
  coordinator_.scheduler.Advance(absl::Seconds(20));
  const JoinPending b = coordinator_.Join(JoinWithVersion("b", 1, "worker 1.1"));
  EXPECT_FALSE(b.answered());
}

TEST_F(MembershipTest, ADeadlineNamesTheMissingRanksAndTheNextCallGoesOn) {
  coordinator_.Register(MakeSpec("job", 4));
  const JoinPending a = coordinator_.Join("job", "a", {1});
  coordinator_.scheduler.Advance(absl::Seconds(5));
  ASSERT_TRUE(a.answered());
  EXPECT_EQ(a.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Detail<v1::MissingRanks>(a.status()).ranks(), ElementsAre(0, 2, 3));
  EXPECT_THAT(std::string(a.status().message()), HasSubstr("ranks 0, 2-3"));
  const JoinPending again = coordinator_.Join("job", "a", {1});
  const JoinPending b = coordinator_.Join("job", "b", {0, 2, 3});
  ASSERT_TRUE(again.answered() && again.get().ok());
}

TEST_F(MembershipTest, ANodeBetweenTwoPollsCountsAsPresentAndGetsTheAnswerInItsNextOne) {
  coordinator_.Register(MakeSpec("job"));
  coordinator_.Join("job", "a", {0});
  coordinator_.scheduler.Advance(absl::Seconds(5) + absl::Milliseconds(100));
  const JoinPending b = coordinator_.Join("job", "b", {1});
  ASSERT_TRUE(b.answered() && b.get().ok());
  const JoinPending a = coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(a.answered() && a.get().ok());
  EXPECT_EQ(a->generation(), b->generation());
}

TEST_F(MembershipTest, NobodyIsMadeToWaitForACallerThatIsGone) {
  coordinator_.Register(MakeSpec("job"));
  JoinPending a = coordinator_.Join("job", "a", {0});
  a.cancel();
  EXPECT_EQ(a.status().code(), absl::StatusCode::kCancelled);
  const JoinPending b = coordinator_.Join("job", "b", {1});
  EXPECT_FALSE(b.answered());
  EXPECT_THAT(coordinator_.Status("job").missing_ranks(), ElementsAre(0));
}

TEST_F(MembershipTest, ARankHeldByAnotherNodeIsRefusedWithItsHolder) {
  coordinator_.Register(MakeSpec("job"));
  coordinator_.Join("job", "a", {0});
  const JoinPending b = coordinator_.Join("job", "b", {0, 1});
  ASSERT_TRUE(b.answered());
  EXPECT_EQ(b.status().code(), absl::StatusCode::kAlreadyExists);
  const auto conflict = Detail<v1::RankConflict>(b.status());
  EXPECT_EQ(conflict.rank(), 0u);
  EXPECT_EQ(conflict.holder_node_id(), "a");
}

TEST_F(MembershipTest, BadJoinsAreRefusedByField) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending outside = coordinator_.Join("job", "a", {2});
  EXPECT_EQ(outside.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Detail<v1::FieldViolation>(outside.status()).field(), "ranks[0].rank");
  const JoinPending none = coordinator_.Join("job", "a", {});
  EXPECT_EQ(Detail<v1::FieldViolation>(none.status()).field(), "ranks");
  const JoinPending twice = coordinator_.Join("job", "a", {0, 0});
  EXPECT_EQ(Detail<v1::FieldViolation>(twice.status()).field(), "ranks[1].rank");
  const JoinPending early = coordinator_.Join("job", "a", {0}, 0);
  EXPECT_EQ(Detail<v1::FieldViolation>(early.status()).field(), "incarnation");
  v1::JoinJobRequest other = coordinator_.JoinRequest("job", "a", {0});
  other.set_spec_fingerprint(1);
  EXPECT_EQ(coordinator_.Join(other).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(coordinator_.Join("nobody", "a", {0}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, StaleGenerationsAndIncarnationsAreAbortedWithTheCurrentOnes) {
  coordinator_.FormPair("job");
  const absl::Status generation = coordinator_.Heartbeat(Coordinator::Key("job", "a", 9));
  EXPECT_EQ(generation.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(generation).current_generation(), 1u);
  EXPECT_EQ(Detail<v1::StaleMember>(generation).current_leader_epoch(),
            coordinator_.claims->current());
  const absl::Status incarnation = coordinator_.Heartbeat(Coordinator::Key("job", "a", 1, 9));
  EXPECT_EQ(incarnation.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(incarnation).current_incarnation(), 1u);
  const absl::Status stranger = coordinator_.Heartbeat(Coordinator::Key("job", "c"));
  EXPECT_EQ(stranger.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(stranger).current_incarnation(), 0u);
}

TEST_F(MembershipTest, AnOlderProcessOfANodeCannotComeBack) {
  coordinator_.Register(MakeSpec("job"));
  coordinator_.Join("job", "a", {0}, 5);
  const JoinPending old = coordinator_.Join("job", "a", {0}, 4);
  EXPECT_EQ(old.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(old.status()).current_incarnation(), 5u);
}

TEST_F(MembershipTest, ANewIncarnationEndsTheGenerationAndEveryWaiterIsToldAtOnce) {
  coordinator_.FormPair("job");
  const ExchangePending waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  ASSERT_FALSE(waiting.answered());
  const JoinPending b = coordinator_.Join("job", "b", {1}, 2);
  ASSERT_TRUE(waiting.answered());
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(waiting.status().message()), HasSubstr("node b was replaced"));
  EXPECT_EQ(coordinator_.Heartbeat(Coordinator::Key("job", "a")).code(),
            absl::StatusCode::kAborted);
  const JoinPending a = coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(a.answered() && b.answered());
  EXPECT_EQ(a->generation(), 2u);
  EXPECT_EQ(a->members(1).incarnation(), 2u);
}

TEST_F(MembershipTest, AHeldGenerationCannotBeKeptOnceAnotherNodeComesWithoutIt) {
  coordinator_.FormPair("job");
  ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
  const JoinPending b = coordinator_.Join("job", "b", {1}, 2);
  const JoinPending held = coordinator_.Rejoin("job", "a", {0}, 1);
  ASSERT_TRUE(held.answered());
  EXPECT_EQ(held.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(held.status().message()), HasSubstr("held_generation 0"));
  EXPECT_FALSE(b.answered());
  const JoinPending fresh = coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(fresh.answered() && b.answered());
  EXPECT_EQ(b->generation(), 2u);
  EXPECT_EQ(b->members(0).rendezvous(), "a/0#1");
}

TEST_F(MembershipTest, AWaitingNodeIsToldWhenItsHeldGenerationIsLost) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending held = coordinator_.Rejoin("job", "a", {0}, 3);
  ASSERT_FALSE(held.answered());
  const JoinPending b = coordinator_.Join("job", "b", {1}, 2);
  ASSERT_TRUE(held.answered());
  EXPECT_EQ(held.status().code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(b.answered());
}

TEST_F(MembershipTest, ANodeThatBringsRendezvousWithItsHeldGenerationJoinsTheNextOne) {
  coordinator_.FormPair("job");
  coordinator_.Join("job", "b", {1}, 2);
  v1::JoinJobRequest request = coordinator_.JoinRequest("job", "a", {0});
  request.set_held_generation(1);
  const JoinPending a = coordinator_.Join(request);
  ASSERT_TRUE(a.answered() && a.get().ok());
  EXPECT_EQ(a->generation(), 2u);
  EXPECT_EQ(a->members(1).incarnation(), 2u);
}

TEST_F(MembershipTest, ALateJoinUnderAnOldGenerationDoesNotEndTheCurrentOne) {
  coordinator_.FormPair("job");
  coordinator_.Join("job", "b", {1}, 2);
  coordinator_.Join("job", "a", {0});
  const JoinPending late = coordinator_.Rejoin("job", "a", {0}, 1);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(late.status()).current_generation(), 2u);
  EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a", 2)).ok());
}

TEST_F(MembershipTest, ARetriedJoinGetsTheSameGeneration) {
  coordinator_.FormPair("job");
  const JoinPending again = coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(again.answered() && again.get().ok());
  EXPECT_EQ(again->generation(), 1u);
  EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "b")).ok());
}

TEST_F(MembershipTest, AMemberThatJoinsAfreshWantsANewGeneration) {
  coordinator_.FormPair("job");
  ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
  const JoinPending a = coordinator_.Join("job", "a", {0});
  EXPECT_FALSE(a.answered());
  const JoinPending b = coordinator_.Join("job", "b", {1});
  ASSERT_TRUE(a.answered() && b.answered());
  EXPECT_EQ(b->generation(), 2u);
}

TEST_F(MembershipTest, ALeaseThatRunsOutIsToldToEveryWaiterAtOnce) {
  coordinator_.FormPair("job");
  for (const char* node : {"a", "b"}) {
    ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", node)).ok());
  }
  // a polls on and on, b is silent.
  ExchangePending waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  coordinator_.scheduler.Advance(absl::Seconds(5));
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kDeadlineExceeded);
  waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  coordinator_.scheduler.Advance(absl::Milliseconds(4'900));
  EXPECT_FALSE(waiting.answered());
  waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  coordinator_.scheduler.Advance(absl::Seconds(1));
  ASSERT_TRUE(waiting.answered());
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(waiting.status().message()), HasSubstr("lease ran out of node b"));
  const v1::JobStatus status = coordinator_.Status("job");
  EXPECT_EQ(status.state(), v1::JOB_STATE_JOINING);
  EXPECT_THAT(status.missing_ranks(), ElementsAre(0, 1));
  // Its rank is free for another node.
  const JoinPending c = coordinator_.Join("job", "c", {1});
  const JoinPending a = coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(a.answered() && a.get().ok());
  EXPECT_EQ(a->members(1).node_id(), "c");
}

TEST_F(MembershipTest, AnyCallKeepsTheLease) {
  coordinator_.FormPair("job");
  for (int i = 0; i < 10; ++i) {
    coordinator_.scheduler.Advance(absl::Seconds(9));
    EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
    const ExchangePending report = coordinator_.Report(Coordinator::Key("job", "b"), {});
    EXPECT_TRUE(report.get().ok()) << report.status();
  }
}

TEST_F(MembershipTest, ANodeThatHasJustJoinedHasTheStartupGrace) {
  coordinator_.FormPair("job");
  coordinator_.scheduler.Advance(absl::Seconds(59));
  EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
  coordinator_.scheduler.Advance(absl::Seconds(2));
  // b has never called: its grace is over. a called, so that its lease counts.
  EXPECT_EQ(coordinator_.Heartbeat(Coordinator::Key("job", "a")).code(),
            absl::StatusCode::kAborted);
}

TEST_F(MembershipTest, AStallOfTheCoordinatorIsNobodysSilence) {
  coordinator_.FormPair("job");
  for (const char* node : {"a", "b"}) {
    ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", node)).ok());
  }
  coordinator_.scheduler.Stall(absl::Minutes(10));
  EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
  coordinator_.scheduler.Advance(absl::Seconds(11));
  EXPECT_EQ(coordinator_.Heartbeat(Coordinator::Key("job", "a")).code(),
            absl::StatusCode::kAborted);
}

TEST_F(MembershipTest, PartitionedNodesThatComeBackTogetherKeepTheirGeneration) {
  coordinator_.FormPair("job");
  coordinator_.scheduler.Advance(absl::Minutes(5));
  EXPECT_THAT(coordinator_.Status("job").ranks(), IsEmpty());
  const JoinPending a = coordinator_.Rejoin("job", "a", {0}, 1, 40);
  const JoinPending b = coordinator_.Rejoin("job", "b", {1}, 1, 40);
  ASSERT_TRUE(a.answered() && a.get().ok());
  EXPECT_EQ(a->generation(), 1u);
  EXPECT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "b")).ok());
}

TEST_F(MembershipTest, LeavingEndsTheGenerationWithoutAnAlarm) {
  coordinator_.FormPair("job");
  const ExchangePending waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  v1::LeaveJobRequest leave;
  *leave.mutable_node() = Coordinator::Key("job", "b");
  leave.set_reason("preempted");
  ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  ASSERT_TRUE(waiting.answered());
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(waiting.status().message()), HasSubstr("preempted"));
  // A retry of the call that has left already.
  EXPECT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
}

TEST_F(MembershipTest, AFinishedJobLetsTheRestReportAndLeave) {
  coordinator_.FormPair("job");
  v1::LeaveJobRequest leave;
  leave.set_job_finished(true);
  *leave.mutable_node() = Coordinator::Key("job", "a");
  ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_FINISHED);
  EXPECT_TRUE(coordinator_.Report(Coordinator::Key("job", "b"), {MakeTelemetry(1, 3)}).get().ok());
  const ExchangePending ask =
      coordinator_.Ask(Coordinator::Key("job", "b"), DigestOnly(MakeBatch(4)));
  ASSERT_TRUE(ask.answered());
  EXPECT_EQ(ask.status().code(), absl::StatusCode::kAborted);
  *leave.mutable_node() = Coordinator::Key("job", "b");
  *leave.add_telemetry() = MakeTelemetry(1, 4);
  ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_FINISHED);
}

TEST_F(MembershipTest, AJobWithoutNodesIsForgottenAfterItsRetention) {
  MemoryStore store;
  ServiceOptions options;
  options.job_retention = absl::Hours(1);
  options.sweep_interval = absl::Minutes(1);
  Coordinator coordinator(&store, options);
  coordinator.Register(MakeSpec("job"));
  coordinator.scheduler.Advance(absl::Minutes(59));
  EXPECT_EQ(coordinator.registry->ListJobs({})->jobs_size(), 1);
  coordinator.scheduler.Advance(absl::Minutes(3));
  EXPECT_EQ(coordinator.registry->ListJobs({})->jobs_size(), 0);
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  EXPECT_THAT(*store.LoadJobs(), IsEmpty());
}

TEST_F(MembershipTest, WatchersAreToldOfChanges) {
  coordinator_.Register(MakeSpec("job"));
  const uint64_t revision = coordinator_.Status("job").revision();
  v1::WatchJobRequest watch;
  watch.mutable_job()->set_name("job");
  watch.set_after_revision(revision);
  watch.set_wait_ms(1000);
  Pending<v1::WatchJobResponse> changed;
  changed.cancel = coordinator_.registry->WatchJob(watch, changed.Done());
  EXPECT_FALSE(changed.answered());
  coordinator_.Join("job", "a", {0});
  ASSERT_TRUE(changed.answered());
  EXPECT_GT(changed->status().revision(), revision);
  watch.set_after_revision(coordinator_.Status("job").revision());
  Pending<v1::WatchJobResponse> quiet;
  quiet.cancel = coordinator_.registry->WatchJob(watch, quiet.Done());
  coordinator_.scheduler.Advance(absl::Seconds(1));
  ASSERT_TRUE(quiet.answered());
  EXPECT_EQ(quiet->status().revision(), watch.after_revision());
}

TEST_F(MembershipTest, ShutdownTellsEveryWaiterToComeBackLater) {
  coordinator_.FormPair("job");
  const ExchangePending waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  coordinator_.Register(MakeSpec("other"));
  const JoinPending joining = coordinator_.Join("other", "a", {0});
  coordinator_.registry->Shutdown();
  for (const absl::Status& status : {waiting.status(), joining.status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_GT(Detail<v1::RetryLater>(status).retry_after_ms(), 0u);
  }
  EXPECT_EQ(coordinator_.Heartbeat(Coordinator::Key("job", "a")).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(MembershipTest, ASilentNodeIsSuspectBeforeItIsDeadAndAnyCallClearsIt) {
  coordinator_.FormPair("job");
  for (const char* node : {"a", "b"}) {
    ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", node)).ok());
  }
  const auto suspects = [&] {
    std::vector<uint32_t> ranks;
    const v1::JobStatus status = coordinator_.Status("job");
    for (const v1::RankStatus& rank : status.ranks()) {
      if (rank.suspect()) ranks.push_back(rank.rank());
    }
    return ranks;
  };
  coordinator_.scheduler.Advance(absl::Seconds(4));
  EXPECT_THAT(suspects(), IsEmpty());
  ASSERT_TRUE(coordinator_.Heartbeat(Coordinator::Key("job", "a")).ok());
  const uint64_t before = coordinator_.Status("job").revision();
  coordinator_.scheduler.Advance(absl::Seconds(2));
  EXPECT_THAT(suspects(), ElementsAre(1));
  EXPECT_GT(coordinator_.Status("job").revision(), before) << "whoever watches is told";
  EXPECT_EQ(coordinator_.Status("job").state(), v1::JOB_STATE_TRAINING);
  ASSERT_TRUE(coordinator_.Report(Coordinator::Key("job", "b"), {}).get().ok());
  EXPECT_THAT(suspects(), IsEmpty());
}

TEST_F(MembershipTest, AnEvictedProcessDoesNotComeBackAsALaterLifeOfItself) {
  coordinator_.FormPair("job");
  v1::EvictNodeRequest request;
  request.mutable_job()->set_name("job");
  request.set_node_id("b");
  ASSERT_TRUE(coordinator_.registry->EvictNode(request).ok());
  v1::JoinJobRequest again = coordinator_.JoinRequest("job", "b", {1}, /*incarnation=*/2);
  again.set_previous_incarnation(1);
  const JoinPending refused = coordinator_.Join(again);
  ASSERT_TRUE(refused.answered());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Detail<v1::StaleMember>(refused.status()).evicted());
  // Another process of the name, which has not been in the job.
  again.set_previous_incarnation(0);
  EXPECT_FALSE(coordinator_.Join(again).answered());
}

TEST_F(MembershipTest, AnEvictedProcessStaysOutAndANewOneComesIn) {
  coordinator_.FormPair("job");
  const ExchangePending waiting = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  v1::EvictNodeRequest request;
  request.mutable_job()->set_name("job");
  request.set_node_id("b");
  request.set_reason("bad memory");
  const auto evicted = coordinator_.registry->EvictNode(request);
  ASSERT_TRUE(evicted.ok()) << evicted.status();
  EXPECT_EQ(evicted->generation(), 1u);
  EXPECT_THAT(evicted->ranks(), ElementsAre(1));
  ASSERT_TRUE(waiting.answered());
  EXPECT_THAT(std::string(waiting.status().message()), HasSubstr("bad memory"));

  const JoinPending back = coordinator_.Join("job", "b", {1});
  ASSERT_TRUE(back.answered());
  EXPECT_THAT(back.status(), HasCode(absl::StatusCode::kAborted));
  const JoinPending a = coordinator_.Join("job", "a", {0}, 1);
  const JoinPending fresh = coordinator_.Join("job", "b", {1}, 2);
  ASSERT_TRUE(a.answered() && fresh.answered());
  EXPECT_EQ(fresh->generation(), 2u);
  EXPECT_THAT(coordinator_.registry->EvictNode(v1::EvictNodeRequest()).status(),
              HasCode(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sparsebalance
