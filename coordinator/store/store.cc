#include "coordinator/store/store.h"

#include <utility>

namespace sparsebalance {

absl::StatusOr<std::optional<StoredJob>> Store::LoadJob(const JobId& id) {
  auto jobs = LoadJobs();
  if (!jobs.ok()) return jobs.status();
  for (StoredJob& job : *jobs) {
    if (job.id == id) return std::optional<StoredJob>(std::move(job));
  }
  return std::optional<StoredJob>();
}

}  // namespace sparsebalance
