// A clock for tests that moves only when told to.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/scheduler.h"

namespace sparsebalance {

class ManualScheduler : public Scheduler {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  TimerId At(absl::Time when, Callback callback) override {
    absl::MutexLock lock(&mutex_);
    timers_.emplace(std::pair{when, next_id_}, std::move(callback));
    return next_id_++;
  }

  void Cancel(TimerId id) override {
    Callback dropped;
    absl::MutexLock lock(&mutex_);
    for (auto timer = timers_.begin(); timer != timers_.end(); ++timer) {
      if (timer->first.second != id) continue;
      dropped = std::move(timer->second);
      timers_.erase(timer);
      return;
    }
  }

  // Lets time pass: timers run at the times they are due, on this thread.
  void Advance(absl::Duration by) {
    const absl::Time end = Now() + by;
    while (RunNext(end)) {
    }
    absl::MutexLock lock(&mutex_);
    now_ = end;
  }

  // As if the whole process had been stopped for so long: timers that fell due meanwhile run once,
  // late.
  void Stall(absl::Duration by) {
    const absl::Time end = Now() + by;
    std::vector<Callback> due;
    {
      absl::MutexLock lock(&mutex_);
      now_ = end;
      while (!timers_.empty() && timers_.begin()->first.first <= end) {
        due.push_back(std::move(timers_.begin()->second));
        timers_.erase(timers_.begin());
      }
    }
    for (Callback& callback : due) callback();
  }

 private:
  bool RunNext(absl::Time end) {
    Callback callback;
    {
      absl::MutexLock lock(&mutex_);
      if (timers_.empty() || timers_.begin()->first.first > end) return false;
      now_ = std::max(now_, timers_.begin()->first.first);
      callback = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    callback();
    return true;
  }

  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
  TimerId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, TimerId>, Callback> timers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
