// What sbctl shows: answers of the coordinator as tables for people.
#pragma once

#include <string>

#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

std::string JobsView(const v1::ListJobsResponse& jobs);
std::string JobView(const v1::JobStatus& job);
std::string PlanView(const v1::JobKey& job, const v1::GetPlanResponse& plan);

}  // namespace sparsebalance
