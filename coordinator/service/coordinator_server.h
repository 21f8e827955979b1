// A whole coordinator in a process: store, registry, gRPC server and status page.
//
//   absl::StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::Start(config);
//   ... (*server)->grpc_address() ...
//   (*server)->Drain();
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/service_options.h"

namespace sparsebalance {

struct ServerConfig {
  ListenAddress listen;
  std::optional<ListenAddress> metrics_listen;  // nothing: no status page
  std::string store_path;                       // empty: memory, nothing is kept
  std::string version;
  bool insecure = false;  // plaintext may be offered to other machines
  ServiceOptions options;
};

class CoordinatorServer {
 public:
  // UNAVAILABLE where an address cannot be bound; FAILED_PRECONDITION for a plaintext address that
  // other machines can reach without `insecure`; the store's errors.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(ServerConfig config);
  ~CoordinatorServer();  // Drain()

  const ListenAddress& grpc_address() const;
  const std::optional<ListenAddress>& metrics_address() const;
  uint64_t leader_epoch() const;
  std::string store_description() const;

  // Health turns NOT_SERVING, every waiter is answered UNAVAILABLE, answers under way get the drain
  // time-out, what was learned is stored. Idempotent. Returns the store's first error, if any.
  absl::Status Drain();

 private:
  struct Parts;

  explicit CoordinatorServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace sparsebalance
