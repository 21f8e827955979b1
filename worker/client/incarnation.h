// Incarnations: numbers that tell the lives of one node apart. A later life has a higher one.
//
//   bits 52..63  restarts of the whole job, as whatever starts its nodes counts them (a JobSet's
//                restart attempt); they order lives on machines whose clocks disagree
//   bits  0..51  microseconds since 1970 at the start of this life (until the year 2112)
//
//   MakeIncarnation(/*restart_attempt=*/2, absl::Now())
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace sparsebalance {

inline constexpr int kIncarnationClockBits = 52;
inline constexpr uint32_t kMaxRestartAttempt = (1u << (64 - kIncarnationClockBits)) - 1;

// `restart_attempt` is at most kMaxRestartAttempt.
inline uint64_t MakeIncarnation(uint32_t restart_attempt, absl::Time now) {
  constexpr uint64_t kClock = (uint64_t{1} << kIncarnationClockBits) - 1;
  return (uint64_t{restart_attempt} << kIncarnationClockBits) |
         (static_cast<uint64_t>(absl::ToUnixMicros(now)) & kClock);
}

// For a process that has just been started and is told that its node has been `current` before: the
// clock of the machine before was ahead of this one's, so the number after it is taken. Nothing
// where `current` belongs to a later restart of the job: then it is this process that is out of
// date.
inline std::optional<uint64_t> IncarnationAfter(uint64_t own, uint64_t current) {
  const uint64_t next = current + 1;
  if (next <= own || next >> kIncarnationClockBits != own >> kIncarnationClockBits) {
    return std::nullopt;
  }
  return next;
}

}  // namespace sparsebalance
