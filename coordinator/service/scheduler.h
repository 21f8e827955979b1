// Time and timers, injected so that tests own them.
#pragma once

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance {

class Scheduler {
 public:
  using TimerId = uint64_t;
  using Callback = absl::AnyInvocable<void()>;

  virtual ~Scheduler() = default;

  // Monotonic: only differences mean something.
  virtual absl::Time Now() = 0;

  // Runs `callback` once, at `when` or soon after, on a thread of the scheduler. Never from within
  // At itself. Returns an id that is never 0.
  virtual TimerId At(absl::Time when, Callback callback) = 0;

  // After it returns the callback will not start; it may be running still. Unknown ids are fine.
  virtual void Cancel(TimerId id) = 0;
};

// One thread that sleeps until the next timer is due.
class ThreadScheduler : public Scheduler {
 public:
  ThreadScheduler();
  ~ThreadScheduler() override;  // drops the timers that are left

  absl::Time Now() override;
  TimerId At(absl::Time when, Callback callback) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(TimerId id) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar changed_;
  TimerId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, TimerId>, Callback> timers_ ABSL_GUARDED_BY(mutex_);
  std::map<TimerId, absl::Time> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sparsebalance
