#include "coordinator/store/etcd/etcd_channel.h"

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace sparsebalance {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file || content.str().empty()) {
    return absl::NotFoundError(
        absl::StrCat("the TLS file ", path, " for etcd cannot be read or is empty"));
  }
  return content.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const EtcdTlsFiles& tls) {
  if (!tls.any()) return grpc::InsecureChannelCredentials();
  if (tls.cert.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError(
        "a client certificate for etcd needs its key and the reverse; give both files or none");
  }
  grpc::SslCredentialsOptions options;
  for (const auto& [path, text] :
       {std::pair{&tls.ca, &options.pem_root_certs}, std::pair{&tls.cert, &options.pem_cert_chain},
        std::pair{&tls.key, &options.pem_private_key}}) {
    absl::StatusOr<std::string> content = ReadFile(*path);
    if (!content.ok()) return content.status();
    *text = *std::move(content);
  }
  return grpc::SslCredentials(options);
}

absl::Status CheckEndpoint(absl::string_view endpoint) {
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  if (endpoint.find('/') != absl::string_view::npos || colon == absl::string_view::npos ||
      colon == 0 || !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("etcd's endpoint '", endpoint,
                     "' is not HOST:PORT; leave out http:// and https://, TLS is used where files "
                     "for it are given"));
  }
  return absl::OkStatus();
}

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  // A member that hangs is noticed by what is sent while calls wait. etcd forbids pings more often
  // than every five seconds.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  // A watch may hear nothing for hours and is pinged all the same.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A restarted member is found again within about a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);  // time given to one attempt
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetMaxReceiveMessageSize(-1);  // pages of values
  arguments.SetMaxSendMessageSize(-1);
  // The failures of one client's connections are not another's, nor is their backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<grpc::Channel>>> MakeEtcdChannels(
    const std::vector<std::string>& endpoints, const EtcdTlsFiles& tls) {
  if (endpoints.empty()) {
    return absl::InvalidArgumentError("no endpoint of etcd is given; name one as HOST:PORT");
  }
  auto credentials = Credentials(tls);
  if (!credentials.ok()) return credentials.status();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  channels.reserve(endpoints.size());
  for (const std::string& endpoint : endpoints) {
    if (absl::Status status = CheckEndpoint(endpoint); !status.ok()) return status;
    channels.push_back(grpc::CreateCustomChannel(endpoint, *credentials, Arguments()));
  }
  return channels;
}

}  // namespace sparsebalance
