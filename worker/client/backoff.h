// Exponential back-off with a bound, for retries against the coordinator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace sparsebalance {

// A seed that differs between nodes.
inline uint64_t BackoffSeed(const std::string& node_id) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : node_id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

class Backoff {
 public:
  // `seed` spreads the retries of nodes that lost the same coordinator: each delay is between half
  // of the nominal one and the whole.
  Backoff(absl::Duration initial, absl::Duration max, uint64_t seed)
      : initial_(initial), max_(max), next_(initial), state_(seed | 1) {}

  absl::Duration Next() {
    const absl::Duration nominal = next_;
    next_ = std::min(next_ * 2, max_);
    state_ ^= state_ << 13;  // xorshift64
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    const double share = 0.5 + 0.5 * static_cast<double>(state_ >> 11) / 9007199254740992.0;
    return nominal * share;
  }

  void Reset() { next_ = initial_; }

 private:
  absl::Duration initial_;
  absl::Duration max_;
  absl::Duration next_;
  uint64_t state_;
};

}  // namespace sparsebalance
