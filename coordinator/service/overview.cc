#include "coordinator/service/overview.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/service/job_metrics.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/rank_names.h"

namespace sparsebalance {

std::string Overview(const std::string& version, uint64_t leader_epoch, const std::string& store,
                     const std::vector<v1::JobStatus>& jobs) {
  std::string page = absl::StrCat("sparsebalance-coordinator ", version, "\nleader epoch ",
                                  leader_epoch, "\nstore ", store, "\n\n");
  if (jobs.empty()) return absl::StrCat(page, "no jobs\n");
  for (const v1::JobStatus& job : jobs) {
    absl::StrAppend(&page, job.spec().job().namespace_(), "/", job.spec().job().name(), "  ",
                    JobStateName(job.state()), "  generation ", job.generation(), "  ranks ",
                    RankLayout(job.spec().parallelism()).count(), "  next step ", job.next_step(),
                    "\n");
    if (!job.missing_ranks().empty()) {
      absl::StrAppend(&page, "  waits for ",
                      RankNames({job.missing_ranks().begin(), job.missing_ranks().end()}), "\n");
    }
    if (!job.recent_steps().empty()) {
      const v1::StepStatus& step = *job.recent_steps().rbegin();
      absl::StrAppend(&page, absl::StrFormat("  step %d: %.1f ms, imbalance %.3f, slowest rank %d, "
                                             "policy %s%s\n",
                                             step.step(), step.step_ms(), step.rank_imbalance(),
                                             step.slowest_rank(), step.policy(),
                                             step.used_fallback() ? " (fallback)" : ""));
    }
  }
  return page;
}

}  // namespace sparsebalance
