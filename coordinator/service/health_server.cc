#include "coordinator/service/health_server.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "coordinator/security/server_limits.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace sparsebalance {

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(const ListenAddress& listen,
                                                                  const Options& options) {
  std::unique_ptr<HealthServer> health(new HealthServer(options.max_watchers));
  health->service_.SetServing("", false);
  health->service_.SetServing("sparsebalance.v1.Coordinator", false);

  security::ServerLimits limits;
  // A name of a service is all that anyone has to say here.
  limits.max_message_bytes = 4 * 1024;
  limits.max_concurrent_streams = 16;
  limits.handshake = options.handshake;
  limits.max_connection_idle = options.max_connection_idle;
  grpc::ServerBuilder builder;
  security::ConfigureServer(builder, limits);
  security::RemoveReflection(builder);
  security::RemoveDefaultHealthService(builder);
  int port = 0;
  builder.AddListeningPort(listen.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&health->service_);
  health->server_ = builder.BuildAndStart();
  if (health->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot answer health probes on ", listen.ToString(),
                     ": the address is in use or not one of this machine"));
  }
  health->address_ = {listen.host, port};
  return health;
}

HealthServer::~HealthServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace sparsebalance
