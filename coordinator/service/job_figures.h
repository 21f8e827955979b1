// What a scrape reads of a job: a copy whose size does not grow with the job's ranks and steps, so
// that the job's lock is held for a moment only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/service/job_meter.h"
#include "coordinator/store/job_id.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// A rank whose learned time factor is above this is slow.
inline constexpr double kSlowRankFactor = 1.25;

struct JobFigures {
  JobId id;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  std::string policy;
  std::string latency_source;
  uint64_t nodes = 0;
  uint64_t ranks = 0;
  uint64_t ranks_missing = 0;
  absl::Duration barrier_oldest_wait;
  uint64_t generation = 0;
  uint64_t next_step = 0;
  uint64_t steps_reported = 0;
  uint64_t sequences_consumed_twice = 0;
  uint64_t remembered_sequences = 0;
  uint64_t state_bytes = 0;
  double max_time_factor = 1;
  uint64_t slow_ranks = 0;
  std::optional<v1::StepStatus> last_step;
  std::optional<v1::StepStatus> last_planned;  // the last finished one that had a plan
  JobMeter::Reading meter;
};

}  // namespace sparsebalance
