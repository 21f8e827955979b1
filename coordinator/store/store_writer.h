// Applies writes to a Store from a thread of its own, many at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

struct StoreWriterOptions {
  size_t max_queued = 65536;  // writes waiting; more are refused
  size_t max_batch = 1024;    // writes given to the store at once
  // Told how long the store took for what was given to it at once. From the writing thread; may be
  // null.
  std::function<void(absl::Duration)> observer;
};

class StoreWriter {
 public:
  // Called once from the writing thread with the outcome, without locks. May be null.
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  // `store` outlives the writer.
  explicit StoreWriter(Store* store, StoreWriterOptions options = {});
  ~StoreWriter();  // writes what is queued

  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  // Writes are applied in the order of the calls. One that the store refuses fails alone: what was
  // given to the store with it is tried again, halved until the bad ones stand alone. Where the
  // store cannot be reached (UNAVAILABLE) all of them fail, without being tried one by one; some
  // may have been applied nonetheless. Where the queue is full (RESOURCE_EXHAUSTED) or closed
  // (UNAVAILABLE) nothing is queued and `done` is not called.
  absl::Status Write(StoreWrite write, Done done = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until everything queued before the call has been tried. Returns the first error since
  // the last Flush.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t failed_writes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // How the last write ended.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    StoreWrite write;
    Done done;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void ApplyBatch(std::vector<Entry> batch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Outcomes in the order of the writes.
  void ApplyRange(absl::Span<const StoreWrite> writes, absl::Span<absl::Status> outcomes);
  void Note(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  const StoreWriterOptions options_;
  mutable absl::Mutex mutex_;
  std::vector<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t accepted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t tried_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sparsebalance
