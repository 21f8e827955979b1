// A request to stop that waits can listen to: set once, from any thread.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance {

class StopSignal {
 public:
  void Request() {
    absl::MutexLock lock(&mutex_);
    requested_ = true;
  }

  bool requested() const {
    absl::MutexLock lock(&mutex_);
    return requested_;
  }

  // Whether the stop was requested before `timeout` had passed.
  bool WaitFor(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&requested_), timeout);
  }

 private:
  mutable absl::Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsebalance
