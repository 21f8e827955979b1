#include "coordinator/service/scheduler.h"

#include <chrono>

#include "absl/time/clock.h"

namespace sparsebalance {

ThreadScheduler::ThreadScheduler() : thread_([this] { Run(); }) {}

ThreadScheduler::~ThreadScheduler() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

absl::Time ThreadScheduler::Now() {
  // The steady clock: a step of the wall clock must not end leases.
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

Scheduler::TimerId ThreadScheduler::At(absl::Time when, Callback callback) {
  absl::MutexLock lock(&mutex_);
  const TimerId id = next_id_++;
  const auto [timer, inserted] = timers_.emplace(std::pair{when, id}, std::move(callback));
  due_.emplace(id, when);
  if (timer == timers_.begin()) changed_.SignalAll();
  return id;
}

void ThreadScheduler::Cancel(TimerId id) {
  Callback dropped;  // destroyed after the lock: it may own anything
  absl::MutexLock lock(&mutex_);
  const auto due = due_.find(id);
  if (due == due_.end()) return;
  const auto timer = timers_.find({due->second, id});
  dropped = std::move(timer->second);
  timers_.erase(timer);
  due_.erase(due);
}

void ThreadScheduler::Run() {
  while (true) {
    Callback callback;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_) {
        if (timers_.empty()) {
          changed_.Wait(&mutex_);
          continue;
        }
        const absl::Duration left = timers_.begin()->first.first - Now();
        if (left <= absl::ZeroDuration()) break;
        changed_.WaitWithDeadline(&mutex_, absl::Now() + left);
      }
      if (stopping_) return;
      callback = std::move(timers_.begin()->second);
      due_.erase(timers_.begin()->first.second);
      timers_.erase(timers_.begin());
    }
    callback();
  }
}

}  // namespace sparsebalance
