#include "coordinator/security/rpc_access.h"

namespace sparsebalance::security {
namespace {

constexpr bool InOrder() {
  for (size_t i = 0; i < kAccess.size(); ++i) {
    if (kAccess[i].method != static_cast<Method>(i)) return false;
  }
  return true;
}
static_assert(InOrder(), "AccessOf() takes a method for its place in the table");

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kNode:
      return "node";
    case Role::kReader:
      return "reader";
    case Role::kOperator:
      return "operator";
  }
  return "no role";
}

std::optional<Role> RoleByName(std::string_view name) {
  for (const Role role : {Role::kNode, Role::kReader, Role::kOperator}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

bool Allows(const Access& access, Role role) {
  switch (role) {
    case Role::kNode:
      return access.node;
    case Role::kReader:
      return access.reader;
    case Role::kOperator:
      return true;
  }
  return false;
}

RpcTarget TargetOf(const v1::RegisterJobRequest& request) {
  return {Method::kRegisterJob, request.spec().job().namespace_()};
}
RpcTarget TargetOf(const v1::JoinJobRequest& request) {
  return {Method::kJoinJob, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::ExchangeStepRequest& request) {
  return {Method::kExchangeStep, request.node().job().namespace_()};
}
RpcTarget TargetOf(const v1::HeartbeatRequest& request) {
  return {Method::kHeartbeat, request.node().job().namespace_()};
}
RpcTarget TargetOf(const v1::LeaveJobRequest& request) {
  return {Method::kLeaveJob, request.node().job().namespace_()};
}
RpcTarget TargetOf(const v1::PutCoverageRequest& request) {
  return {Method::kPutCoverage, request.node().job().namespace_()};
}
RpcTarget TargetOf(const v1::ListJobsRequest& request) {
  return {Method::kListJobs, request.namespace_()};
}
RpcTarget TargetOf(const v1::GetJobRequest& request) {
  return {Method::kGetJob, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::GetPlanRequest& request) {
  return {Method::kGetPlan, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::WatchJobRequest& request) {
  return {Method::kWatchJob, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::PutProfileRequest&) { return {Method::kPutProfile, {}}; }
RpcTarget TargetOf(const v1::GetProfileRequest&) { return {Method::kGetProfile, {}}; }
RpcTarget TargetOf(const v1::EvictNodeRequest& request) {
  return {Method::kEvictNode, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::RemoveJobRequest& request) {
  return {Method::kRemoveJob, request.job().namespace_()};
}
RpcTarget TargetOf(const v1::DrainRequest&) { return {Method::kDrain, {}}; }
RpcTarget TargetOf(const v1::ExportStateRequest& request) {
  return {Method::kExportState, request.namespace_()};
}

}  // namespace sparsebalance::security
