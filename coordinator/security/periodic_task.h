// Something done again and again by a thread of its own, until this object goes.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance::security {

class PeriodicTask {
 public:
  // The first run comes after one `interval`.
  PeriodicTask(absl::Duration interval, std::function<void()> task);
  // Waits for a run that is under way.
  ~PeriodicTask();
  PeriodicTask(const PeriodicTask&) = delete;
  PeriodicTask& operator=(const PeriodicTask&) = delete;

 private:
  void Run();

  const absl::Duration interval_;
  const std::function<void()> task_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sparsebalance::security
