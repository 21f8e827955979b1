// The small parts beneath the service, each by itself.

#include <set>

#include "absl/synchronization/notification.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/consumed_journal.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/plan_executor.h"
#include "coordinator/service/rank_names.h"
#include "coordinator/service/scheduler.h"
#include "coordinator/service/step_history.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;

TEST(BatchDigestTest, IsTruncatedSha256OfLittleEndianIntegers) {
  // printf of the eight integers 3, 1, 10, 20, 5 as little-endian 64 bits, through sha256sum.
  v1::GlobalBatch batch;
  batch.set_step(3);
  batch.set_epoch(1);
  v1::BatchSequence* sequence = batch.add_sequences();
  sequence->set_id(10);
  sequence->set_tokens(20);
  sequence->set_supervised_tokens(5);
  EXPECT_EQ(BatchDigest(batch), 0x3728cae2a5a0e045u);
  const uint64_t first = BatchDigest(batch);
  batch.set_digest(99);
  EXPECT_EQ(BatchDigest(batch), first);
  sequence->set_supervised_tokens(6);
  EXPECT_NE(BatchDigest(batch), first);
}

TEST(BatchDigestTest, CoversWhatLookAheadAdds) {
  // 3, 1, 10, 20, 5; one sequence, deferred by 0; step 4 with one sequence: 11, 21, 6, 2.
  v1::GlobalBatch batch;
  batch.set_step(3);
  batch.set_epoch(1);
  v1::BatchSequence* sequence = batch.add_sequences();
  sequence->set_id(10);
  sequence->set_tokens(20);
  sequence->set_supervised_tokens(5);
  v1::FollowingBatch* following = batch.add_following();
  following->set_step(4);
  v1::BatchSequence* later = following->add_sequences();
  later->set_id(11);
  later->set_tokens(21);
  later->set_supervised_tokens(6);
  later->set_deferred_steps(2);
  EXPECT_EQ(BatchDigest(batch), 0xaf73e04307acb6a7u);
  const uint64_t before = BatchDigest(batch);
  sequence->set_deferred_steps(1);
  EXPECT_NE(BatchDigest(batch), before);
}

TEST(RankNamesTest, RunsAreShortened) {
  EXPECT_EQ(RankNames({}), "no rank");
  EXPECT_EQ(RankNames({3}), "rank 3");
  EXPECT_EQ(RankNames({0, 1, 2, 5}), "ranks 0-2, 5");
  EXPECT_EQ(StepNames({7, 8}), "steps 7-8");
  std::vector<uint32_t> odd;
  for (uint32_t rank = 1; rank < 40; rank += 2) odd.push_back(rank);
  EXPECT_EQ(RankNames(odd), "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
}

TEST(RankLayoutTest, RanksAreNumberedDataThenStageThenSequence) {
  v1::Parallelism parallelism;
  parallelism.set_data(3);
  parallelism.set_pipeline(2);
  parallelism.set_sequence(4);
  const RankLayout layout(parallelism);
  EXPECT_EQ(layout.count(), 24u);
  EXPECT_EQ(layout.DataIndex(7), 0u);
  EXPECT_EQ(layout.DataIndex(8), 1u);
  EXPECT_EQ(layout.Stage(3), 0u);
  EXPECT_EQ(layout.Stage(4), 1u);
}

v1::ConsumedBatch Consumed(uint64_t step, uint64_t epoch, const std::vector<uint64_t>& ids) {
  v1::ConsumedBatch batch;
  batch.set_step(step);
  batch.set_epoch(epoch);
  for (const uint64_t id : ids) batch.add_sequence_ids(id);
  return batch;
}

TEST(ConsumedJournalTest, CountsDistinctSequencesAndRepetitions) {
  ConsumedJournal journal;
  EXPECT_TRUE(journal.Add(Consumed(0, 0, {1, 2})).has_value());
  EXPECT_TRUE(journal.Add(Consumed(1, 0, {2, 3})).has_value());
  EXPECT_EQ(journal.consumed_in_epoch(), 3u);
  EXPECT_EQ(journal.consumed_twice(), 1u);
  // The next epoch sees every sequence again, rightly.
  EXPECT_TRUE(journal.Add(Consumed(2, 1, {1, 2, 3})).has_value());
  EXPECT_EQ(journal.consumed_in_epoch(), 3u);
  EXPECT_EQ(journal.consumed_twice(), 1u);
}

TEST(ConsumedJournalTest, ARetryIsNoRepetition) {
  ConsumedJournal journal;
  const auto write = journal.Add(Consumed(0, 0, {1, 2}));
  ASSERT_TRUE(write.has_value());
  EXPECT_FALSE(journal.Add(Consumed(0, 0, {1, 2})).has_value());
  journal.Written(0, *write, true);
  EXPECT_FALSE(journal.Add(Consumed(0, 0, {1, 2})).has_value());
  EXPECT_EQ(journal.consumed_twice(), 0u);
}

TEST(ConsumedJournalTest, AcknowledgesUpToTheFirstGapOnly) {
  ConsumedJournal journal;
  const auto zero = journal.Add(Consumed(0, 0, {1}));
  const auto one = journal.Add(Consumed(1, 0, {2}));
  const auto two = journal.Add(Consumed(2, 0, {3}));
  journal.Written(1, *one, true);
  EXPECT_EQ(journal.stored_count(), 0u);
  journal.Written(0, *zero, true);
  EXPECT_EQ(journal.stored_through_step(), 1u);
  journal.Written(2, *two, false);
  EXPECT_EQ(journal.stored_through_step(), 1u);
  // Refused by the store: the client sends it again and it is written again.
  EXPECT_TRUE(journal.Add(Consumed(2, 0, {3})).has_value());
}

TEST(ConsumedJournalTest, ACutForgetsLaterStepsAndTheirRepetitions) {
  ConsumedJournal journal({Consumed(0, 0, {1}), Consumed(1, 0, {2, 1})});
  EXPECT_EQ(journal.consumed_twice(), 1u);
  const auto overtaken = journal.Add(Consumed(2, 0, {3}));
  EXPECT_TRUE(journal.CutBack(1));
  EXPECT_EQ(journal.consumed_twice(), 0u);
  EXPECT_EQ(journal.consumed_in_epoch(), 1u);
  const auto again = journal.Add(Consumed(2, 0, {4}));
  journal.Written(2, *overtaken, true);  // of the batch that was cut
  EXPECT_EQ(journal.stored_through_step(), 0u);
  EXPECT_EQ(journal.stored_count(), 1u);
  journal.Written(2, *again, true);
  EXPECT_EQ(journal.stored_through_step(), 2u);
  EXPECT_FALSE(journal.CutBack(3));
}

TEST(ConsumedJournalTest, OldEpochsAreForgotten) {
  ConsumedJournal journal;
  journal.Add(Consumed(0, 0, {1}));
  journal.Add(Consumed(1, 1, {1}));
  EXPECT_FALSE(journal.Prune().has_value());
  journal.Add(Consumed(2, 2, {1}));
  EXPECT_EQ(journal.Prune(), 1u);
  EXPECT_EQ(journal.Batches().size(), 2u);
  EXPECT_FALSE(journal.Add(Consumed(0, 0, {1})).has_value());
  // A resume from a checkpoint of long ago goes back to one of them.
  EXPECT_TRUE(journal.CutBack(0));
  EXPECT_TRUE(journal.Add(Consumed(0, 0, {1})).has_value());
  EXPECT_EQ(journal.consumed_in_epoch(), 1u);
}

v1::RankTelemetry Report(uint32_t rank, uint64_t step) {
  v1::RankTelemetry report;
  report.set_rank(rank);
  report.set_step(step);
  report.set_compute_ms(10);
  return report;
}

TEST(StepHistoryTest, StepsThatSomeRankNeverReportsAreForgotten) {
  v1::Parallelism parallelism;
  parallelism.set_data(2);
  StepHistory history(RankLayout(parallelism), 4);
  for (uint64_t step = 0; step < 100; ++step) EXPECT_FALSE(history.Add(Report(0, step)));
  EXPECT_FALSE(history.IsNew(Report(1, 3)));
  ASSERT_TRUE(history.IsNew(Report(1, 99)));
  EXPECT_TRUE(history.Add(Report(1, 99)).has_value());
}

TEST(StepHistoryTest, ARestartMakesLaterStepsNewsAgain) {
  StepHistory history(RankLayout(v1::Parallelism()), 4);
  for (uint64_t step = 0; step < 10; ++step) {
    auto finished = history.Add(Report(0, step));
    ASSERT_TRUE(finished.has_value());
    history.Keep(finished->status);
  }
  EXPECT_FALSE(history.IsNew(Report(0, 9)));
  history.RestartAt(8);
  EXPECT_TRUE(history.IsNew(Report(0, 8)));
  EXPECT_EQ(history.LastStep(0), 7u);
  std::vector<uint64_t> kept;
  for (const v1::StepStatus& step : history.finished()) kept.push_back(step.step());
  EXPECT_THAT(kept, ElementsAre(6, 7));
}

TEST(ThreadSchedulerTest, RunsTimersInOrderAndForgetsCancelledOnes) {
  absl::Mutex mutex;
  std::vector<int> ran;
  absl::Notification last;
  ThreadScheduler scheduler;
  const absl::Time now = scheduler.Now();
  const auto note = [&](int id) {
    absl::MutexLock lock(&mutex);
    ran.push_back(id);
  };
  scheduler.At(now + absl::Milliseconds(20), [&] {
    note(3);
    last.Notify();
  });
  const auto cancelled = scheduler.At(now + absl::Milliseconds(15), [&] { note(2); });
  scheduler.At(now, [&] { note(1); });
  scheduler.Cancel(cancelled);
  last.WaitForNotification();
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(ran, ElementsAre(1, 3));
}

}  // namespace
}  // namespace sparsebalance
