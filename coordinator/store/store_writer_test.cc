#include "coordinator/store/store_writer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "coordinator/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

const JobId kJob{"default", "job"};

StoreConsumed Batch(uint64_t step) {
  StoreConsumed write{kJob, {}};
  write.batch.set_step(step);
  return write;
}

// Applies nothing while the gate is shut, and nothing at all that holds step 13.
class GatedStore : public MemoryStore {
 public:
  absl::Status Apply(absl::Span<const StoreWrite> writes) override {
    entered_.Notify();
    gate_.WaitForNotification();
    for (const StoreWrite& write : writes) {
      const auto* consumed = std::get_if<StoreConsumed>(&write);
      if (consumed != nullptr && consumed->batch.step() == 13) {
        return absl::InternalError("thirteen");
      }
    }
    return MemoryStore::Apply(writes);
  }
  void Open() { gate_.Notify(); }
  void WaitUntilEntered() { entered_.WaitForNotification(); }

 private:
  // Notified once: only the first Apply waits.
  struct Once {
    void Notify() {
      absl::MutexLock lock(&mutex);
      set = true;
    }
    void WaitForNotification() {
      absl::MutexLock lock(&mutex);
      mutex.Await(absl::Condition(&set));
    }
    absl::Mutex mutex;
    bool set = false;
  };
  Once entered_;
  Once gate_;
};

TEST(StoreWriterTest, ReturnsAtOnceAndTellsWhenAWriteIsDone) {
  GatedStore store;
  StoreWriter writer(&store);
  absl::Notification done;
  ASSERT_TRUE(writer
                  .Write(Batch(1),
                         [&](const absl::Status& status) {
                           EXPECT_TRUE(status.ok());
                           done.Notify();
                         })
                  .ok());
  EXPECT_FALSE(done.HasBeenNotified());
  store.Open();
  done.WaitForNotification();
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(1));
}

TEST(StoreWriterTest, OneBadWriteDoesNotTakeItsNeighboursAlong) {
  GatedStore store;
  store.Open();
  StoreWriter writer(&store);
  std::vector<std::string> outcomes;
  absl::Mutex mutex;
  for (const uint64_t step : {12, 13, 14}) {
    ASSERT_TRUE(writer
                    .Write(Batch(step),
                           [&](const absl::Status& status) {
                             absl::MutexLock lock(&mutex);
                             outcomes.emplace_back(status.message());
                           })
                    .ok());
  }
  EXPECT_EQ(writer.Flush().message(), "thirteen");
  EXPECT_TRUE(writer.Flush().ok());
  EXPECT_EQ(writer.failed_writes(), 1u);
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(outcomes, ElementsAre("", "thirteen", ""));
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(2));
}

// Counts calls, and fails those that hold a step above the limit.
class PickyStore : public MemoryStore {
 public:
  PickyStore(uint64_t limit, absl::Status failure) : limit_(limit), failure_(std::move(failure)) {}

  absl::Status Apply(absl::Span<const StoreWrite> writes) override {
    absl::MutexLock lock(&mutex_);
    const auto open = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return open_; };
    mutex_.Await(absl::Condition(&open));
    ++calls_;
    // As a store does that cannot hold all in one transaction, it keeps what came before the bad
    // write.
    for (const StoreWrite& write : writes) {
      if (std::get<StoreConsumed>(write).batch.step() > limit_) return failure_;
      if (absl::Status status = MemoryStore::Apply({write}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  void Open() {
    absl::MutexLock lock(&mutex_);
    open_ = true;
  }
  int calls() {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

 private:
  const uint64_t limit_;
  const absl::Status failure_;
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(StoreWriterTest, FindsAFewBadWritesAmongManyInFewTries) {
  PickyStore store(999, absl::InvalidArgumentError("too far"));
  StoreWriter writer(&store);
  for (uint64_t step = 0; step < 512; ++step) ASSERT_TRUE(writer.Write(Batch(step)).ok());
  ASSERT_TRUE(writer.Write(Batch(1000)).ok());
  for (uint64_t step = 512; step < 1000; ++step) ASSERT_TRUE(writer.Write(Batch(step)).ok());
  store.Open();
  EXPECT_TRUE(absl::IsInvalidArgument(writer.Flush()));
  EXPECT_EQ(writer.failed_writes(), 1u);
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(1000));
  EXPECT_LT(store.calls(), 50);
}

TEST(StoreWriterTest, DoesNotTryEveryWriteWhereTheStoreIsAway) {
  PickyStore store(0, absl::UnavailableError("away"));
  StoreWriter writer(&store);
  for (uint64_t step = 1; step <= 500; ++step) ASSERT_TRUE(writer.Write(Batch(step)).ok());
  store.Open();
  EXPECT_TRUE(absl::IsUnavailable(writer.Flush()));
  EXPECT_EQ(writer.failed_writes(), 500u);
  EXPECT_LE(store.calls(), 2);  // the writer may have taken the first ones before the others came
}

TEST(StoreWriterTest, AFullQueueRefuses) {
  GatedStore store;
  StoreWriter writer(&store, {.max_queued = 2, .max_batch = 1});
  ASSERT_TRUE(writer.Write(Batch(0)).ok());
  store.WaitUntilEntered();  // the first is with the store, no longer in the queue
  ASSERT_TRUE(writer.Write(Batch(1)).ok());
  ASSERT_TRUE(writer.Write(Batch(2)).ok());
  EXPECT_EQ(writer.Write(Batch(3)).code(), absl::StatusCode::kResourceExhausted);
  store.Open();
  EXPECT_EQ(writer.Flush().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(3));
}

TEST(StoreWriterTest, TheEndWritesWhatIsQueued) {
  MemoryStore store;
  {
    StoreWriter writer(&store);
    for (uint64_t step = 0; step < 500; ++step) ASSERT_TRUE(writer.Write(Batch(step)).ok());
  }
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(500));
}

}  // namespace
}  // namespace sparsebalance
