// gRPC server credentials that follow a CertificateWatcher: each new connection is opened with the
// certificate, key and client CAs in use at that moment, together; existing ones are not touched.
// Clients must show a certificate of the CA.
//
// gRPC 1.51 has a watcher of files itself (FileWatcherCertificateProvider). It is not used: it does
// not check that a key belongs to its certificate, and where it does not, the server throws away
// what it had and answers no new connection until the next good pair.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/security/certificate_watcher.h"
#include "grpcpp/security/server_credentials.h"

namespace sparsebalance::security {

// FAILED_PRECONDITION where the watcher has no certificate or no CA. `watcher` outlives every
// server that listens with the credentials. Such servers turn SO_REUSEPORT off (ConfigureServer in
// server_limits.h does): gRPC swaps what a port was opened with without a lock between the sockets
// of one port.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    CertificateWatcher* watcher);

}  // namespace sparsebalance::security
