#include "coordinator/security/server_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <netdb.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

// Called by gRPC before each handshake, one at a time for each port.
grpc_ssl_certificate_config_reload_status Fetch(void* reader,
                                                grpc_ssl_server_certificate_config** config) {
  const auto material = static_cast<CertificateWatcher::Reader*>(reader)->TakeNew();
  if (material == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {material->key_pem().c_str(),
                                           material->certificate_pem().c_str()};
  *config = grpc_ssl_server_certificate_config_create(material->ca_pem().c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// "localhost:7070" may stand for a socket of IPv4 and one of IPv6. gRPC would let both share what
// they were opened with, see server_credentials.h; as addresses of their own they do not.
std::vector<std::string> AddressesOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || address.front() == '[') return {address};
  const std::string host = address.substr(0, colon);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {address};
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<std::string> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(info->ai_addr, info->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    addresses.push_back(info->ai_family == AF_INET6 ? absl::StrCat("[", text, "]") : text);
  }
  return addresses.empty() ? std::vector<std::string>{address} : addresses;
}

class WatchedCredentials final : public grpc::ServerCredentials {
 public:
  explicit WatchedCredentials(CertificateWatcher* watcher) : watcher_(watcher) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    spdlog::critical("peers are known by their certificates; there is no other authentication");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    const std::vector<std::string> addresses = AddressesOf(address);
    if (addresses.size() == 1) return AddAddress(address, server);
    const std::string asked = address.substr(address.rfind(':') + 1);
    int port = 0;
    for (const std::string& one : addresses) {
      const std::string with_port =
          absl::StrCat(one, ":", port == 0 ? asked : std::to_string(port));
      // As in gRPC, one that can be used is enough.
      if (const int bound = AddAddress(with_port, server); bound > 0) port = bound;
    }
    return port;
  }

  int AddAddress(const std::string& address, grpc_server* server) {
    // With a reader for each: whether there is something new is a question of each port.
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &Fetch,
            watcher_->NewReader());
    grpc_server_credentials* const credentials =
        grpc_ssl_server_credentials_create_with_options(options);
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  CertificateWatcher* const watcher_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    CertificateWatcher* watcher) {
  const auto material = watcher->current();
  if (!material->has_certificate() || !material->has_ca()) {
    return absl::FailedPreconditionError(
        "the gRPC server needs a TLS certificate, its key, and the CA of its clients");
  }
  return std::make_shared<WatchedCredentials>(watcher);
}

}  // namespace sparsebalance::security
