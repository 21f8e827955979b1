#include "coordinator/service/server_config.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/security/policy.h"

namespace sparsebalance {
namespace {

absl::Status CheckPlaintext(const ServerConfig& config) {
  if (config.secure() || config.insecure) return absl::OkStatus();
  const auto check = [](const ListenAddress& address, absl::string_view what) -> absl::Status {
    if (address.IsLoopback()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        what, " ", address.ToString(),
        " would offer plaintext without authentication to other machines; give --tls-cert, "
        "--tls-key and --tls-client-ca, listen on 127.0.0.1, or say --insecure if the network is "
        "trusted"));
  };
  if (absl::Status status = check(config.listen, "--listen"); !status.ok()) return status;
  return config.metrics_listen ? check(*config.metrics_listen, "--metrics-listen")
                               : absl::OkStatus();
}

absl::Status CheckTls(const ServerConfig& config) {
  const security::TlsFiles& tls = config.tls;
  if (tls.certificate.empty() && tls.key.empty() && tls.ca.empty()) {
    if (config.authorization_file.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--authorization names rules for certificates, but without --tls-cert, --tls-key and "
        "--tls-client-ca nobody shows one");
  }
  if (tls.certificate.empty() || tls.key.empty() || tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key and --tls-client-ca go together: give all three or none");
  }
  if (config.insecure) {
    return absl::InvalidArgumentError(
        "--insecure asks for plaintext and --tls-cert for the opposite; leave one out");
  }
  if (const auto loaded = security::LoadTls(tls, absl::Now()); !loaded.ok()) return loaded.status();
  if (config.authorization_file.empty()) return absl::OkStatus();
  const auto rules = security::Policy::ReadFile(config.authorization_file);
  if (!rules.ok()) return rules.status();
  return security::Policy::Parse(*rules, config.authorization_file).status();
}

absl::Status CheckState(const ServerConfig& config) {
  if (config.state.location.kind != StoreLocation::Kind::kEtcd) return absl::OkStatus();
  const auto advertised = ListenAddress::Parse(config.state.advertise);
  if (!advertised.ok() || advertised->port == 0 || advertised->host == "0.0.0.0" ||
      advertised->host == "::") {
    return absl::InvalidArgumentError(absl::StrCat("'", config.state.advertise,
                                                   "' is no address that clients of other replicas "
                                                   "can be sent to; give --advertise HOST:PORT"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckServerConfig(const ServerConfig& config) {
  for (const auto& check : {CheckPlaintext, CheckTls, CheckState}) {
    if (absl::Status status = check(config); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
