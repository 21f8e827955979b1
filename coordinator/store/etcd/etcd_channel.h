// Connections to the members of an etcd cluster.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"

namespace sparsebalance {

// PEM files. TLS is used where any of them is given. They are read once.
struct EtcdTlsFiles {
  std::string ca;    // whom to trust; empty: what the system trusts
  std::string cert;  // ours, with its chain, where etcd asks for one
  std::string key;   // of cert

  bool any() const { return !ca.empty() || !cert.empty() || !key.empty(); }
};

// One channel an endpoint, in their order; nothing is connected yet. An endpoint is HOST:PORT.
// INVALID_ARGUMENT for one that is not, for none at all, and for a cert without its key or the
// reverse; NOT_FOUND for a file that cannot be read.
absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeEtcdChannels(
    const std::vector<std::string>& endpoints, const EtcdTlsFiles& tls);

}  // namespace sparsebalance
