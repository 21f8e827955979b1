#include "coordinator/service/plan_executor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;

// A clock that only the tasks of a test move, and what they left behind.
class Recorder {
 public:
  absl::Time Now() {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  PlanExecutor::Task Work(std::string name, absl::Duration took) {
    return [this, name = std::move(name), took] {
      absl::MutexLock lock(&mutex_);
      now_ += took;
      order_.push_back(name);
    };
  }

  // Waits until so many tasks have run.
  std::vector<std::string> Order(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return order_.size() >= count; };
    mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(20));
    return order_;
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  std::vector<std::string> order_ ABSL_GUARDED_BY(mutex_);
};

// Holds one thread of an executor until it is told to let go.
class Blocker {
 public:
  explicit Blocker(PlanExecutor& executor) : flow_(executor.NewFlow()) {
    EXPECT_TRUE(executor.TrySubmit(flow_, [this] {
      running_.Notify();
      release_.WaitForNotification();
    }));
    running_.WaitForNotification();
  }
  ~Blocker() { Release(); }

  PlanExecutor::FlowId flow() const { return flow_; }
  void Release() {
    if (!release_.HasBeenNotified()) release_.Notify();
  }

 private:
  const PlanExecutor::FlowId flow_;
  absl::Notification running_;
  absl::Notification release_;
};

PlanExecutorOptions With(Recorder& recorder, int threads, size_t max_queued = 100) {
  PlanExecutorOptions options;
  options.threads = threads;
  options.max_queued = max_queued;
  options.now = [&recorder] { return recorder.Now(); };
  return options;
}

TEST(PlanExecutor, ServesTheJobThatHasUsedTheLeastTimeFirst) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 1));
  const auto huge = executor.NewFlow();
  const auto small = executor.NewFlow();
  Blocker blocker(executor);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(executor.TrySubmit(huge, recorder.Work("huge", absl::Milliseconds(100))));
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(executor.TrySubmit(small, recorder.Work("small", absl::Milliseconds(1))));
  }
  blocker.Release();
  EXPECT_THAT(recorder.Order(6), ElementsAre("huge", "small", "small", "small", "huge", "huge"));
}

TEST(PlanExecutor, GivesAJobThatWasIdleNoCreditForIt) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 1));
  const auto busy = executor.NewFlow();
  const auto idle = executor.NewFlow();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(executor.TrySubmit(busy, recorder.Work("busy", absl::Milliseconds(10))));
  }
  recorder.Order(5);
  Blocker blocker(executor);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(executor.TrySubmit(busy, recorder.Work("busy", absl::Milliseconds(10))));
    ASSERT_TRUE(executor.TrySubmit(idle, recorder.Work("idle", absl::Milliseconds(10))));
  }
  blocker.Release();
  // With credit for its idle time it would run four times before the other's turn came.
  std::vector<std::string> order = recorder.Order(13);
  order.erase(order.begin(), order.begin() + 5);
  int lead = 0;
  int most = 0;
  for (const std::string& name : order) {
    lead += name == "idle" ? 1 : -1;
    most = std::max(most, std::abs(lead));
  }
  EXPECT_LE(most, 2) << testing::PrintToString(order);
}

TEST(PlanExecutor, KeepsAThreadFreeOfJobsWithLongPlans) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 2));
  const auto first = executor.NewFlow();
  const auto second = executor.NewFlow();
  const auto small = executor.NewFlow();
  // Both are known to take long.
  ASSERT_TRUE(executor.TrySubmit(first, recorder.Work("first", absl::Seconds(1))));
  recorder.Order(1);
  ASSERT_TRUE(executor.TrySubmit(second, recorder.Work("second", absl::Seconds(1))));
  recorder.Order(2);

  absl::Notification running;
  absl::Notification release;
  ASSERT_TRUE(executor.TrySubmit(first, [&] {
    running.Notify();
    release.WaitForNotification();
  }));
  running.WaitForNotification();
  ASSERT_TRUE(executor.TrySubmit(second, recorder.Work("second", absl::Seconds(1))));
  ASSERT_TRUE(executor.TrySubmit(small, recorder.Work("small", absl::Milliseconds(1))));
  EXPECT_THAT(recorder.Order(3), ElementsAre("first", "second", "small"));
  EXPECT_EQ(executor.load().queued, 1u);
  release.Notify();
  EXPECT_THAT(recorder.Order(4), ElementsAre("first", "second", "small", "second"));
}

TEST(PlanExecutor, RunsTheTasksOfOneJobOneAfterTheOther) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 4));
  const auto flow = executor.NewFlow();
  std::vector<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    expected.push_back(std::to_string(i));
    ASSERT_TRUE(executor.TrySubmit(flow, recorder.Work(expected.back(), absl::Milliseconds(1))));
  }
  EXPECT_EQ(recorder.Order(50), expected);
}

TEST(PlanExecutor, RefusesMoreThanItsQueueHoldsAndSaysHowOften) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 1, /*max_queued=*/2));
  const auto flow = executor.NewFlow();
  const auto other = executor.NewFlow();
  Blocker blocker(executor);
  EXPECT_TRUE(executor.TrySubmit(flow, recorder.Work("one", absl::ZeroDuration())));
  // Half full: what is left is for jobs that wait for nothing yet.
  EXPECT_FALSE(executor.TrySubmit(flow, recorder.Work("two", absl::ZeroDuration())));
  EXPECT_TRUE(executor.TrySubmit(other, recorder.Work("other", absl::ZeroDuration())));
  EXPECT_FALSE(executor.TrySubmit(executor.NewFlow(), recorder.Work("x", absl::ZeroDuration())));
  EXPECT_EQ(executor.load().refused, 2u);
  EXPECT_EQ(executor.load().queued, 2u);
  EXPECT_EQ(executor.load().running, 1u);
  blocker.Release();
  EXPECT_THAT(recorder.Order(2), ElementsAre("one", "other"));
}

TEST(PlanExecutor, RefusesEverythingOnceStopped) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 1));
  const auto flow = executor.NewFlow();
  executor.Stop();
  EXPECT_FALSE(executor.TrySubmit(flow, recorder.Work("late", absl::ZeroDuration())));
}

TEST(PlanExecutor, EndsWhatAJobHadQueuedWhenTheJobEnds) {
  Recorder recorder;
  ThreadPoolExecutor executor(With(recorder, 1));
  const auto flow = executor.NewFlow();
  Blocker blocker(executor);
  ASSERT_TRUE(executor.TrySubmit(flow, recorder.Work("last", absl::ZeroDuration())));
  executor.EndFlow(flow);
  blocker.Release();
  EXPECT_THAT(recorder.Order(1), ElementsAre("last"));
  executor.EndFlow(flow);  // long gone
}

}  // namespace
}  // namespace sparsebalance
