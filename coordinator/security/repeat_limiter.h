// Says whether something that happens again and again is worth a line in the log: at its first time
// and then once an interval. What is remembered is bounded, whatever an attacker sends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance::security {

class RepeatLimiter {
 public:
  // Beyond `capacity` different keys in an interval, all further ones share one line.
  RepeatLimiter(absl::Duration interval, size_t capacity);

  // Nothing: say nothing. Else how often it has happened unsaid since the last line.
  std::optional<uint64_t> Admit(const std::string& key, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    absl::Time said = absl::InfinitePast();
    uint64_t unsaid = 0;
  };

  std::optional<uint64_t> Say(Entry& entry, absl::Time now) const;

  const absl::Duration interval_;
  const size_t capacity_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Entry others_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance::security
