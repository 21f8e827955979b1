// What the jobs of one namespace may use together. A quota protects the other teams: it is checked
// where something new is asked for, and never takes from a job that trains.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace sparsebalance {

struct NamespaceQuota {
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

  uint64_t max_jobs = kUnlimited;       // that are not finished
  uint64_t max_ranks = kUnlimited;      // of those jobs together
  uint64_t max_sequences = kUnlimited;  // a step, of those jobs together, by global_batch_size
  uint64_t max_bytes = kUnlimited;      // remembered about all its jobs; estimated
};

// What a namespace uses, or what a request adds to it.
struct NamespaceUsage {
  uint64_t jobs = 0;
  uint64_t ranks = 0;
  uint64_t sequences = 0;
  uint64_t bytes = 0;
};

// Whether the namespace may use so much more. RESOURCE_EXHAUSTED (QuotaExceeded) names the first
// limit that it would pass and how to go on.
absl::Status CheckQuota(const std::string& ns, const NamespaceQuota& quota,
                        const NamespaceUsage& used, const NamespaceUsage& more);

// The quotas of all namespaces. Thread-safe, so that they may be replaced while jobs run.
class QuotaTable {
 public:
  QuotaTable() = default;

  // "NAMESPACE:KEY=VALUE,...", KEY one of max-jobs, max-ranks, max-sequences, max-bytes; VALUE a
  // number ("512MiB" for bytes) or "unlimited". The namespace "*" stands for every one that has no
  // entry of its own; an entry starts from what "*" says, wherever that stands. INVALID_ARGUMENT
  // names the entry and what is wrong.
  static absl::StatusOr<QuotaTable> Parse(const std::vector<std::string>& entries);

  QuotaTable(const QuotaTable& other);
  QuotaTable& operator=(const QuotaTable& other);

  NamespaceQuota For(std::string_view ns) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  NamespaceQuota others_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, NamespaceQuota, std::less<>> named_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
