// The question that every method of the service asks first.
//
//   absl::StatusOr<PeerIdentity> caller = authorizer_.Authorize(*context, *request);
//   if (!caller.ok()) ... answer with caller.status()
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/security/authorizer.h"
#include "coordinator/security/peer_identity.h"
#include "coordinator/security/rpc_access.h"
#include "grpcpp/server_context.h"

namespace sparsebalance::security {

class CallAuthorizer {
 public:
  // nullptr: everyone may do everything, for plaintext on a trusted network.
  explicit CallAuthorizer(Authorizer* authorizer) : authorizer_(authorizer) {}

  // Who calls, or Authorizer::Check's error. The request says which RPC it is and for which
  // namespace, by the table in rpc_access.h.
  template <typename Request>
  absl::StatusOr<PeerIdentity> Authorize(const grpc::CallbackServerContext& context,
                                         const Request& request) const {
    const RpcTarget target = TargetOf(request);
    return Authorize(context, target.method, target.name_space);
  }
  absl::StatusOr<PeerIdentity> Authorize(const grpc::CallbackServerContext& context, Method method,
                                         std::string_view name_space) const;

  // For ListJobs without a namespace.
  NamespaceView VisibleNamespaces(const PeerIdentity& identity) const;

 private:
  Authorizer* const authorizer_;
};

}  // namespace sparsebalance::security
