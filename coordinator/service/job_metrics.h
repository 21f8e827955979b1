// The metric families of single jobs, made afresh from their status.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// "registered", "joining", "training" or "finished".
const char* JobStateName(v1::JobState state);

// Jobs by state over all of `jobs`; the rest only of jobs that are not finished, labelled
// (namespace, job).
std::vector<prometheus::MetricFamily> JobMetricFamilies(const std::vector<v1::JobStatus>& jobs);

}  // namespace sparsebalance
