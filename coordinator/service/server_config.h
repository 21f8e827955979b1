// What a coordinator is started with.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/security/server_limits.h"
#include "coordinator/security/tls_files.h"
#include "coordinator/service/coordinator_state.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/namespace_quota.h"
#include "coordinator/service/service_options.h"

namespace sparsebalance {

struct ServerConfig {
  ListenAddress listen;
  std::optional<ListenAddress> metrics_listen;  // nothing: no status page
  std::optional<ListenAddress> health_listen;   // nothing: no server for probes
  StateConfig state;
  // Without a certificate everything is plaintext, without a file of rules every peer with a
  // certificate may do everything.
  security::TlsFiles tls;
  std::string authorization_file;
  bool insecure = false;    // plaintext may be offered to other machines
  bool reflection = false;  // whoever may connect can ask which RPCs there are
  QuotaTable quotas;
  ServiceOptions options;
  security::ServerLimits connections;
  std::string version;

  bool secure() const { return !tls.certificate.empty(); }
};

// Whether the parts fit together, and whether the files that they name can be used; opens no store
// and no port. INVALID_ARGUMENT for what contradicts itself; FAILED_PRECONDITION for a plaintext
// address that other machines can reach without `insecure`, and for files that cannot be used.
absl::Status CheckServerConfig(const ServerConfig& config);

}  // namespace sparsebalance
