// The only place where absl's and gRPC's statuses meet.
//
// Codes have the same numbers. Payloads of an absl status (planner/status_payload.h) travel as an
// RpcStatus in the trailer `grpc-status-details-bin`, each packed as google.protobuf.Any.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace sparsebalance {

grpc::Status ToGrpcStatus(const absl::Status& status);

// Details that do not parse are left out. An unknown code becomes UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sparsebalance
