// Threads that plan. RPC threads hand work over and return at once.
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace sparsebalance {

class PlanExecutor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~PlanExecutor() = default;

  // False where the queue is full or the executor stops; the task is then dropped.
  virtual bool TrySubmit(Task task) = 0;
};

class ThreadPoolExecutor : public PlanExecutor {
 public:
  // `threads` >= 1; `max_queued` tasks may wait besides those that run.
  ThreadPoolExecutor(int threads, size_t max_queued);
  ~ThreadPoolExecutor() override;  // Stop()

  bool TrySubmit(Task task) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops what is queued and waits for what runs. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t max_queued_;
  absl::Mutex mutex_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparsebalance
