#include "coordinator/security/repeat_limiter.h"

#include <utility>

namespace sparsebalance::security {

RepeatLimiter::RepeatLimiter(absl::Duration interval, size_t capacity)
    : interval_(interval), capacity_(capacity) {}

std::optional<uint64_t> RepeatLimiter::Say(Entry& entry, absl::Time now) const {
  if (now - entry.said < interval_) {
    ++entry.unsaid;
    return std::nullopt;
  }
  entry.said = now;
  return std::exchange(entry.unsaid, 0);
}

std::optional<uint64_t> RepeatLimiter::Admit(const std::string& key, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = entries_.find(key); found != entries_.end()) {
    return Say(found->second, now);
  }
  if (entries_.size() >= capacity_) {
    // While it is full this runs at most once an interval for nothing: others_ says when.
    if (now - others_.said < interval_) return Say(others_, now);
    absl::erase_if(entries_,
                   [&](const auto& entry) { return now - entry.second.said >= interval_; });
    if (entries_.size() >= capacity_) return Say(others_, now);
  }
  return Say(entries_[key], now);
}

}  // namespace sparsebalance::security
