#include "worker/client/channel_credentials.h"

#include <arpa/inet.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace sparsebalance {
namespace {

bool IsThisMachine(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  // An address, not a name that begins like one.
  in_addr parsed = {};
  if (inet_pton(AF_INET, host.c_str(), &parsed) == 1) return ntohl(parsed.s_addr) >> 24 == 127;
  return host == "localhost" || host == "[::1]";
}

}  // namespace

absl::Status CheckChannelSecurity(const std::string& address, const ChannelSecurity& settings,
                                  bool insecure) {
  if (settings.encrypted() || IsThisMachine(address)) return absl::OkStatus();
  if (!insecure) {
    return absl::FailedPreconditionError(absl::StrCat(
        "calling ", address,
        " in plaintext: whoever is on the way can read and change it; give "
        "the CA of the coordinator's certificate, or say --insecure if the network is trusted"));
  }
  spdlog::warn("calling {} in plaintext: whoever is on the way can read and change it", address);
  return absl::OkStatus();
}

ClientTls::ClientTls(ChannelSecurity settings,
                     std::unique_ptr<security::CertificateWatcher> watcher)
    : settings_(std::move(settings)), watcher_(std::move(watcher)) {}

absl::StatusOr<std::shared_ptr<ClientTls>> ClientTls::Load(ChannelSecurity settings) {
  if (!settings.encrypted()) {
    return absl::InvalidArgumentError(
        "TLS to the coordinator needs the CA of its certificate, to know it by");
  }
  security::CertificateWatcher::Options options;
  options.interval = settings.refresh;
  auto watcher = security::CertificateWatcher::Start(
      {.certificate = settings.certificate, .key = settings.key, .ca = settings.ca}, options);
  if (!watcher.ok()) return watcher.status();
  return std::shared_ptr<ClientTls>(new ClientTls(std::move(settings), *std::move(watcher)));
}

absl::StatusOr<std::shared_ptr<ClientTls>> LoadChannelSecurity(const std::string& addresses,
                                                               const ChannelSecurity& settings,
                                                               bool insecure) {
  for (const absl::string_view part : absl::StrSplit(addresses, ',', absl::SkipWhitespace())) {
    if (absl::Status status =
            CheckChannelSecurity(std::string(absl::StripAsciiWhitespace(part)), settings, insecure);
        !status.ok()) {
      return status;
    }
  }
  if (settings.encrypted()) return ClientTls::Load(settings);
  if (!settings.certificate.empty() || !settings.key.empty()) {
    return absl::InvalidArgumentError(
        "--tls-cert and --tls-key say who calls; --tls-ca, to know the coordinator by, is missing");
  }
  return std::shared_ptr<ClientTls>();
}

std::shared_ptr<grpc::ChannelCredentials> ClientTls::NewCredentials() const {
  const auto material = watcher_->current();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = material->ca_pem();
  options.pem_private_key = material->key_pem();
  options.pem_cert_chain = material->certificate_pem();
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address) {
  return MakeCoordinatorChannel(address, nullptr);
}

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address,
                                                      const ClientTls* tls) {
  grpc::ChannelArguments arguments;
  // A dead host is noticed within half a minute even where no packet comes back; the coordinator
  // allows a ping every ten seconds.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  // A connection that breaks is opened again after a short pause. One attempt may take longer than
  // the pauses do (this is what the second name means), so that a coordinator that is far away or
  // busy is reached too.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // The plan of a large job is bigger than the default limit of 4 MiB.
  arguments.SetMaxReceiveMessageSize(256 << 20);
  // Several jobs in one process keep connections of their own, so that one cannot block another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (tls == nullptr) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  if (!tls->settings().server_name_override.empty()) {
    arguments.SetSslTargetNameOverride(tls->settings().server_name_override);
  }
  return grpc::CreateCustomChannel(address, tls->NewCredentials(), arguments);
}

}  // namespace sparsebalance
