// A gRPC server for probes, on a port of its own: plaintext, grpc.health.v1 and nothing else. Any
// other RPC is UNIMPLEMENTED there, so the port may be open where the service itself needs TLS: all
// that can be learned is whether it serves.
//
//   auto health = HealthServer::Start({.host = "0.0.0.0", .port = 7072}, {});
//   (*health)->SetServing(true);
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/health_service.h"
#include "coordinator/service/listen_address.h"
#include "grpcpp/server.h"

namespace sparsebalance {

class HealthServer {
 public:
  struct Options {
    size_t max_watchers = 64;
    // A client that says nothing after connecting is cut off then.
    absl::Duration handshake = absl::Seconds(5);
    // A connection without calls is closed after so long.
    absl::Duration max_connection_idle = absl::Minutes(5);
  };

  // NOT_SERVING at first, for the process ("") and for sparsebalance.v1.Coordinator. UNAVAILABLE
  // where the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(const ListenAddress& listen,
                                                             const Options& options);
  // Ends the calls under way.
  ~HealthServer();

  // What probes are told from now on. Thread-safe.
  void SetServing(bool serving) { service_.SetAllServing(serving); }

  const ListenAddress& address() const { return address_; }

 private:
  explicit HealthServer(size_t max_watchers) : service_(max_watchers) {}

  HealthService service_;
  ListenAddress address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sparsebalance
