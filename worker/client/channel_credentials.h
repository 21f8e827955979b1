// How a client proves who it is to the coordinator and knows that it talks to the right one.
//
//   ChannelSecurity security{.ca = "ca.crt", .certificate = "tls.crt", .key = "tls.key"};
//   absl::StatusOr<std::shared_ptr<ClientTls>> tls = ClientTls::Load(security);
//   CoordinatorClient client("coordinator:7070", *tls);
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/certificate_watcher.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace sparsebalance {

// Paths of PEM files, as in security::TlsFiles.
struct ChannelSecurity {
  std::string ca;           // of the coordinator's certificate; empty: plaintext
  std::string certificate;  // of this client, with its intermediates; empty: it shows none
  std::string key;
  // The name that the coordinator's certificate must hold, where it is not the address's host.
  std::string server_name_override;
  absl::Duration refresh = absl::Seconds(10);  // how often the files are looked at

  bool encrypted() const { return !ca.empty(); }
};

// Plaintext is for this machine: FAILED_PRECONDITION where `address` (HOST:PORT) is another one's,
// `settings` say plaintext and `insecure` does not say that it is meant. Where it does, a warning
// is logged.
absl::Status CheckChannelSecurity(const std::string& address, const ChannelSecurity& settings,
                                  bool insecure);

// Credentials that follow their files. A channel keeps what it was made with; whoever wants a
// rotation to take effect makes another when version() has changed. (gRPC 1.51 can follow files
// within a channel, but drops what it had where a new key does not belong to its certificate.)
class ClientTls {
 public:
  // INVALID_ARGUMENT without a CA; else the errors of security::LoadTls.
  static absl::StatusOr<std::shared_ptr<ClientTls>> Load(ChannelSecurity settings);

  // Thread-safe, as all that follows.
  uint64_t version() const { return watcher_->reloads(); }
  std::shared_ptr<grpc::ChannelCredentials> NewCredentials() const;
  const ChannelSecurity& settings() const { return settings_; }
  security::CertificateWatcher& watcher() { return *watcher_; }

 private:
  ClientTls(ChannelSecurity settings, std::unique_ptr<security::CertificateWatcher> watcher);

  const ChannelSecurity settings_;
  const std::unique_ptr<security::CertificateWatcher> watcher_;
};

// CheckChannelSecurity for each of `addresses` (HOST:PORT, with commas between), then what
// `settings` load; null: plaintext.
absl::StatusOr<std::shared_ptr<ClientTls>> LoadChannelSecurity(const std::string& addresses,
                                                               const ChannelSecurity& settings,
                                                               bool insecure);

// With keepalive that a coordinator with default settings accepts. nullptr or no `tls`: plaintext.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address);
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address,
                                                      const ClientTls* tls);

}  // namespace sparsebalance
