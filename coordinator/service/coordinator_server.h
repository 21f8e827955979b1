// A whole coordinator in a process: state, registry, gRPC server, server for probes, status page.
//
//   absl::StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::Start(config);
//   ... (*server)->grpc_address() ...
//   (*server)->Drain();
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/server_config.h"

namespace sparsebalance {

class CoordinatorServer {
 public:
  // `on_drain` is called, from an RPC's thread, when an operator asks for a drain; the program then
  // calls Drain() from a thread of its own.
  // CheckServerConfig's errors; UNAVAILABLE where an address cannot be bound; those of the state.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(
      ServerConfig config, std::function<void(const std::string& reason)> on_drain = nullptr);
  ~CoordinatorServer();  // Drain()

  const ListenAddress& grpc_address() const;
  const std::optional<ListenAddress>& metrics_address() const;
  const std::optional<ListenAddress>& health_address() const;
  uint64_t leader_epoch() const;  // highest of the jobs that are held
  std::string store_description() const;

  // From now on these quotas hold, and certificates and rules are as their files say now.
  void Reload(const QuotaTable& quotas);

  // Probes are told NOT_SERVING, every waiter is answered UNAVAILABLE, answers under way get the
  // drain time-out, what was learned is stored, jobs are given up so that other replicas may take
  // them. Idempotent. Returns the store's first error, if any.
  absl::Status Drain();

 private:
  struct Parts;

  explicit CoordinatorServer(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace sparsebalance
