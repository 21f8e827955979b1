#pragma once

// Events of backends whose calls have finished when they return, and the CPU time of any event.

#include <chrono>
#include <ctime>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels {

// Of the calling thread.
inline timespec ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time;
}

inline double SecondsBetween(const timespec& from, const timespec& to) {
  return static_cast<double>(to.tv_sec - from.tv_sec) +
         1e-9 * static_cast<double>(to.tv_nsec - from.tv_nsec);
}

// Notes the time when it is made.
class HostEvent final : public Event {
 public:
  // INVALID_ARGUMENT for events of another kind.
  static absl::StatusOr<EventInterval> Between(const Event& from, const Event& to) {
    const auto* begin = dynamic_cast<const HostEvent*>(&from);
    const auto* end = dynamic_cast<const HostEvent*>(&to);
    if (begin == nullptr || end == nullptr) {
      return absl::InvalidArgumentError("Elapsed: an event of another backend");
    }
    return EventInterval{
        .seconds = std::chrono::duration<double>(end->wall_ - begin->wall_).count(),
        .cpu_seconds = SecondsBetween(begin->cpu_, end->cpu_)};
  }

 private:
  const std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
  const timespec cpu_ = ThreadCpuTime();
};

}  // namespace sparsebalance::kernels
