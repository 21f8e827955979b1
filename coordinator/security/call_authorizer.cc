#include "coordinator/security/call_authorizer.h"

namespace sparsebalance::security {

absl::StatusOr<PeerIdentity> CallAuthorizer::Authorize(const grpc::CallbackServerContext& context,
                                                       Method method,
                                                       std::string_view name_space) const {
  if (authorizer_ == nullptr) return PeerIdentity();
  // Reading the names is a handful of short copies; less than keeping a table by connection, which
  // would have to learn when connections end.
  PeerIdentity identity = IdentityOf(*context.auth_context());
  const absl::Status status =
      authorizer_->Check(identity, method, name_space, [&context] { return context.peer(); });
  if (!status.ok()) return status;
  return identity;
}

NamespaceView CallAuthorizer::VisibleNamespaces(const PeerIdentity& identity) const {
  if (authorizer_ != nullptr) return authorizer_->VisibleNamespaces(identity);
  NamespaceView view;
  view.every = true;
  return view;
}

}  // namespace sparsebalance::security
