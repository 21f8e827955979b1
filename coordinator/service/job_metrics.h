// The metric families of single jobs, made afresh from their figures. docs/metrics.md says what
// each is.
#pragma once

#include <vector>

#include "coordinator/service/job_figures.h"
#include "prometheus/metric_family.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// "registered", "joining", "training" or "finished".
const char* JobStateName(v1::JobState state);

// Jobs by state over all of `jobs`; the rest only of jobs that are not finished, labelled
// (namespace, job).
std::vector<prometheus::MetricFamily> JobMetricFamilies(const std::vector<JobFigures>& jobs);

}  // namespace sparsebalance
