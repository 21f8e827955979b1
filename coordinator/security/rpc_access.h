// Who may call what: one table for every RPC and page, and where a request names its namespace.
//
// An RPC that is not in the table cannot be authorized; a test holds the table against the
// service's definition.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance::security {

enum class Role {
  kNode,      // trains: everything that a job's own nodes need
  kReader,    // looks on
  kOperator,  // everything
};

// "node", "reader", "operator".
const char* RoleName(Role role);
std::optional<Role> RoleByName(std::string_view name);

enum class Method {
  kRegisterJob,
  kJoinJob,
  kExchangeStep,
  kHeartbeat,
  kLeaveJob,
  kPutCoverage,
  kListJobs,
  kGetJob,
  kGetPlan,
  kWatchJob,
  kPutProfile,
  kGetProfile,
  kEvictNode,
  kRemoveJob,
  kDrain,
  kExportState,
  kImportState,
  kStatusPage,  // metrics and the status page over HTTP
};

// For which namespace a caller needs the role.
enum class Scope {
  kJob,       // that of the request's job
  kListing,   // the one asked for; where none is, any, and the answer shows only what may be seen
  kShared,    // any: what is asked for belongs to all namespaces
  kJobOrAll,  // the one that is named; where none is, every one
  kAll,       // every one: it is about all of them
};

struct Access {
  Method method;
  const char* name;  // as in the service's definition
  bool node;         // whether the role is enough; an operator's always is
  bool reader;
  Scope scope;
};

// In the order of Method.
inline constexpr std::array<Access, 18> kAccess = {{
    // method              name            node   reader scope
    {Method::kRegisterJob, "RegisterJob", true, false, Scope::kJob},
    {Method::kJoinJob, "JoinJob", true, false, Scope::kJob},
    {Method::kExchangeStep, "ExchangeStep", true, false, Scope::kJob},
    {Method::kHeartbeat, "Heartbeat", true, false, Scope::kJob},
    {Method::kLeaveJob, "LeaveJob", true, false, Scope::kJob},
    {Method::kPutCoverage, "PutCoverage", true, false, Scope::kJob},
    {Method::kListJobs, "ListJobs", true, true, Scope::kListing},
    {Method::kGetJob, "GetJob", true, true, Scope::kJob},
    {Method::kGetPlan, "GetPlan", true, true, Scope::kJob},
    {Method::kWatchJob, "WatchJob", true, true, Scope::kJob},
    {Method::kPutProfile, "PutProfile", true, false, Scope::kShared},
    {Method::kGetProfile, "GetProfile", true, true, Scope::kShared},
    {Method::kEvictNode, "EvictNode", false, false, Scope::kJob},
    {Method::kRemoveJob, "RemoveJob", false, false, Scope::kJob},
    {Method::kDrain, "Drain", false, false, Scope::kAll},
    {Method::kExportState, "ExportState", false, false, Scope::kJobOrAll},
    {Method::kImportState, "ImportState", false, false, Scope::kAll},
    {Method::kStatusPage, "status page", false, true, Scope::kAll},
}};

constexpr const Access& AccessOf(Method method) { return kAccess[static_cast<size_t>(method)]; }

bool Allows(const Access& access, Role role);

// Which RPC a request belongs to and the namespace that it names, as it stands in the request; a
// view into it.
struct RpcTarget {
  Method method;
  std::string_view name_space;
};
RpcTarget TargetOf(const v1::RegisterJobRequest& request);
RpcTarget TargetOf(const v1::JoinJobRequest& request);
RpcTarget TargetOf(const v1::ExchangeStepRequest& request);
RpcTarget TargetOf(const v1::HeartbeatRequest& request);
RpcTarget TargetOf(const v1::LeaveJobRequest& request);
RpcTarget TargetOf(const v1::PutCoverageRequest& request);
RpcTarget TargetOf(const v1::ListJobsRequest& request);
RpcTarget TargetOf(const v1::GetJobRequest& request);
RpcTarget TargetOf(const v1::GetPlanRequest& request);
RpcTarget TargetOf(const v1::WatchJobRequest& request);
RpcTarget TargetOf(const v1::PutProfileRequest& request);
RpcTarget TargetOf(const v1::GetProfileRequest& request);
RpcTarget TargetOf(const v1::EvictNodeRequest& request);
RpcTarget TargetOf(const v1::RemoveJobRequest& request);
RpcTarget TargetOf(const v1::DrainRequest& request);
RpcTarget TargetOf(const v1::ExportStateRequest& request);

}  // namespace sparsebalance::security
