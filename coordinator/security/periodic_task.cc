#include "coordinator/security/periodic_task.h"

#include <utility>

namespace sparsebalance::security {

PeriodicTask::PeriodicTask(absl::Duration interval, std::function<void()> task)
    : interval_(interval), task_(std::move(task)), thread_([this] { Run(); }) {}

PeriodicTask::~PeriodicTask() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void PeriodicTask::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval_)) return;
    }
    task_();
  }
}

}  // namespace sparsebalance::security
