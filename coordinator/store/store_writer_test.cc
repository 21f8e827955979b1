#include "coordinator/store/store_writer.h"

#include <memory>
#include <string>
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
