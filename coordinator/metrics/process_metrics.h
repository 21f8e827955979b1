// What Prometheus' own clients say of their process: process_resident_memory_bytes and the like,
// under the same names.
#pragma once

#include <vector>

#include "prometheus/metric_family.h"

namespace sparsebalance {

// Read from /proc; what cannot be read is left out.
std::vector<prometheus::MetricFamily> ProcessMetricFamilies();

}  // namespace sparsebalance
