#include "coordinator/service/plan_executor.h"

#include <algorithm>
#include <utility>

namespace sparsebalance {

ThreadPoolExecutor::ThreadPoolExecutor(int threads, size_t max_queued) : max_queued_(max_queued) {
  threads_.reserve(static_cast<size_t>(std::max(threads, 1)));
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPoolExecutor::~ThreadPoolExecutor() { Stop(); }

bool ThreadPoolExecutor::TrySubmit(Task task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || queue_.size() >= max_queued_) return false;
  queue_.push_back(std::move(task));
  return true;
}

void ThreadPoolExecutor::Stop() {
  std::deque<Task> dropped;  // destroyed after the lock: tasks may own anything
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ThreadPoolExecutor::Run() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&work));
      if (stopping_) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

}  // namespace sparsebalance
