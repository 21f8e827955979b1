// What a coordinator knows after a restart, and what its clients bring back.

#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

v1::ConsumedBatch Consumed(uint64_t step, uint64_t epoch, const std::vector<uint64_t>& ids) {
  v1::ConsumedBatch batch;
  batch.set_step(step);
  batch.set_epoch(epoch);
  for (const uint64_t id : ids) batch.add_sequence_ids(id);
  return batch;
}

class RestartTest : public testing::Test {
 protected:
  static v1::NodeKey A(uint64_t generation = 1) { return Coordinator::Key("job", "a", generation); }
  static v1::NodeKey B(uint64_t generation = 1) { return Coordinator::Key("job", "b", generation); }

  MemoryStore store_;
};

TEST_F(RestartTest, KeepsTheGenerationIfEveryNodeComesBackWithIt) {
  uint64_t first_epoch = 0;
  {
    Coordinator before(&store_);
    before.FormPair("job");
    first_epoch = before.claims->current();
  }
  Coordinator after(&store_);
  EXPECT_GT(after.claims->current(), first_epoch);
  const absl::Status stale = after.Heartbeat(A());
  EXPECT_EQ(stale.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Detail<v1::StaleMember>(stale).current_generation(), 1u);
  EXPECT_EQ(Detail<v1::StaleMember>(stale).current_leader_epoch(), after.claims->current());
  const JoinPending a = after.Rejoin("job", "a", {0}, 1);
  const JoinPending b = after.Rejoin("job", "b", {1}, 1);
  ASSERT_TRUE(a.answered() && a.get().ok());
  EXPECT_EQ(a->generation(), 1u);
  EXPECT_EQ(a->members(1).incarnation(), 1u);
  EXPECT_TRUE(after.Heartbeat(B()).ok());
}

TEST_F(RestartTest, FormsTheNextGenerationIfANodeComesBackWithoutIt) {
  {
    Coordinator before(&store_);
    before.FormPair("job");
  }
  Coordinator after(&store_);
  const JoinPending a = after.Join("job", "a", {0}, 2);
  const JoinPending b = after.Join("job", "b", {1}, 2);
  ASSERT_TRUE(b.answered() && b.get().ok());
  EXPECT_EQ(a->generation(), 2u);
}

TEST_F(RestartTest, BelievesAGenerationThatTheStoreMissed) {
  Coordinator coordinator(&store_);
  coordinator.Register(MakeSpec("job"));
  const JoinPending a = coordinator.Rejoin("job", "a", {0}, 6);
  const JoinPending b = coordinator.Rejoin("job", "b", {1}, 6);
  ASSERT_TRUE(b.answered() && b.get().ok());
  EXPECT_EQ(a->generation(), 6u);
}

TEST_F(RestartTest, AGenerationOlderThanTheLastOneIsNotKept) {
  {
    Coordinator before(&store_);
    before.FormPair("job");
    before.Join("job", "b", {1}, 2);
    before.Join("job", "a", {0});
  }
  Coordinator after(&store_);
  EXPECT_EQ(after.Rejoin("job", "a", {0}, 1).status().code(), absl::StatusCode::kAborted);
}

TEST_F(RestartTest, AnUnknownJobIsToBeRegisteredAgain) {
  Coordinator coordinator(&store_);
  EXPECT_EQ(coordinator.Heartbeat(A()).code(), absl::StatusCode::kNotFound);
}

TEST_F(RestartTest, WhatWasLearnedIsStillKnown) {
  std::string latency;
  {
    Coordinator before(&store_);
    before.FormPair("job");
    before.Report(A(), {MakeTelemetry(0, 0)});
    before.Report(B(), {MakeTelemetry(1, 0)});
    latency = before.Status("job").latency().SerializeAsString();
  }
  Coordinator after(&store_);
  const v1::JobStatus status = after.Status("job");
  EXPECT_EQ(status.latency_source(), "learned");
  EXPECT_EQ(status.latency().SerializeAsString(), latency);
  EXPECT_EQ(status.remembered_sequences(), 2u);
}

TEST_F(RestartTest, LearnedKnowledgeIsWrittenBehindWhileRunning) {
  Coordinator coordinator(&store_);
  coordinator.FormPair("job");
  coordinator.Report(A(), {MakeTelemetry(0, 0)});
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  EXPECT_TRUE(store_.LoadLatencyState({"default", "job"})->empty());
  coordinator.scheduler.Advance(absl::Seconds(11));
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  EXPECT_FALSE(store_.LoadLatencyState({"default", "job"})->empty());
  EXPECT_FALSE(store_.LoadCoverage({"default", "job"})->empty());
}

TEST_F(RestartTest, KnowledgeThatTheStoreRefusedIsWrittenLater) {
  Coordinator coordinator(&store_);
  coordinator.FormPair("job");
  coordinator.Report(A(), {MakeTelemetry(0, 0)});
  store_.FailWrites(absl::InternalError("disk full"));
  coordinator.scheduler.Advance(absl::Seconds(11));
  EXPECT_FALSE(coordinator.writer->Flush().ok());
  store_.FailWrites(absl::OkStatus());
  coordinator.scheduler.Advance(absl::Seconds(11));
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  EXPECT_FALSE(store_.LoadLatencyState({"default", "job"})->empty());
  EXPECT_FALSE(store_.LoadCoverage({"default", "job"})->empty());
}

TEST_F(RestartTest, ConsumedBatchesAreAcknowledgedOnlyOnceTheyAreStored) {
  Coordinator coordinator(&store_);
  coordinator.FormPair("job");
  store_.FailWrites(absl::InternalError("disk full"));
  coordinator.Report(A(), {}, {Consumed(0, 0, {1, 2})});
  EXPECT_FALSE(coordinator.writer->Flush().ok());
  ExchangePending report = coordinator.Report(A(), {});
  EXPECT_EQ(report->consumed_count(), 0u);
  store_.FailWrites(absl::OkStatus());
  coordinator.Report(A(), {}, {Consumed(0, 0, {1, 2}), Consumed(1, 0, {3})});
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  report = coordinator.Report(A(), {});
  EXPECT_EQ(report->consumed_count(), 2u);
  EXPECT_EQ(report->consumed_through_step(), 1u);
  EXPECT_EQ(coordinator.Status("job").sequences_consumed(), 3u);
}

TEST_F(RestartTest, OnlyTheNodeOfRankZeroReportsConsumedBatches) {
  Coordinator coordinator(&store_);
  coordinator.FormPair("job");
  const ExchangePending report = coordinator.Report(B(), {}, {Consumed(0, 0, {1})});
  EXPECT_EQ(Detail<v1::FieldViolation>(report.status()).field(), "consumed");
}

TEST_F(RestartTest, AResumeCutsTheJournalBackInMemoryAndInTheStore) {
  {
    Coordinator before(&store_);
    before.FormPair("job");
    before.Report(A(), {}, {Consumed(0, 0, {1}), Consumed(1, 0, {2}), Consumed(2, 0, {3})});
  }
  Coordinator after(&store_);
  EXPECT_EQ(after.Status("job").sequences_consumed(), 3u);
  v1::JoinJobRequest a = after.JoinRequest("job", "a", {0}, 2);
  a.set_next_step(1);
  v1::JoinJobRequest b = after.JoinRequest("job", "b", {1}, 2);
  b.set_next_step(1);
  after.Join(a);
  const JoinPending joined = after.Join(b);
  ASSERT_TRUE(joined.answered() && joined.get().ok());
  EXPECT_EQ(after.Status("job").sequences_consumed(), 1u);
  EXPECT_EQ(after.Status("job").next_step(), 1u);
  const v1::NodeKey key = Coordinator::Key("job", "a", 2, 2);
  after.Report(key, {}, {Consumed(1, 0, {2}), Consumed(2, 0, {3})});
  EXPECT_EQ(after.Status("job").sequences_consumed_twice(), 0u);
  after.Report(key, {}, {Consumed(3, 0, {3, 4})});
  EXPECT_EQ(after.Status("job").sequences_consumed_twice(), 1u);
  ASSERT_TRUE(after.writer->Flush().ok());
  EXPECT_EQ(store_.LoadConsumed({"default", "job"})->size(), 4u);
}

TEST_F(RestartTest, AFinishedJobStaysFinishedAndMayBeRunAgain) {
  {
    Coordinator before(&store_);
    before.FormPair("job");
    for (const v1::NodeKey& node : {A(), B()}) {
      v1::LeaveJobRequest leave;
      *leave.mutable_node() = node;
      leave.set_job_finished(true);
      ASSERT_TRUE(before.registry->LeaveJob(leave).ok());
    }
  }
  Coordinator after(&store_);
  EXPECT_EQ(after.Status("job").state(), v1::JOB_STATE_FINISHED);
  after.Join("job", "a", {0}, 2);
  EXPECT_EQ(after.Status("job").state(), v1::JOB_STATE_JOINING);
}

TEST_F(RestartTest, ProfilesOutliveTheCoordinator) {
  v1::PutProfileRequest put;
  put.mutable_profile()->mutable_key()->set_device_class("cpu-1-thread");
  put.mutable_profile()->mutable_key()->set_model_class("tiny");
  put.mutable_profile()->mutable_model()->set_per_token_ms(0.25);
  put.mutable_profile()->mutable_model()->set_forward_fraction(0.3);
  put.mutable_profile()->mutable_model()->set_block_tokens(64);
  {
    Coordinator before(&store_);
    ASSERT_TRUE(before.registry->PutProfile(put).ok());
  }
  Coordinator after(&store_);
  after.Register(MakeSpec("job"));
  EXPECT_EQ(after.Status("job").latency_source(), "profile");
  // Measured with other blocks, it says nothing about this job.
  v1::JobSpec other = MakeSpec("other");
  other.mutable_plan()->set_block_tokens(128);
  after.Register(other);
  EXPECT_EQ(after.Status("other").latency_source(), "default");
}

}  // namespace
}  // namespace sparsebalance
