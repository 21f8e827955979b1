// httplib's server, hardened for pages that anyone on the network may ask for: HTTPS that follows a
// CertificateWatcher, and slow clients that cannot keep others out.
//
// A connection carries one request and has one deadline for everything, handshake to last byte, so
// sending a byte now and then gains nothing. That alone would let as many slow clients as there are
// threads keep all others waiting; therefore a connection that has had its fair time makes way as
// soon as another one waits for a thread. Beyond a queue of waiting connections new ones are closed
// at once.
#pragma once

#include <httplib.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/security/certificate_watcher.h"
#include "coordinator/security/http_limits.h"
#include "coordinator/security/openssl_types.h"
#include "coordinator/security/peer_identity.h"
#include "coordinator/security/repeat_limiter.h"

namespace sparsebalance::security {

struct HttpLoad;

class HttpServer : public httplib::Server {
 public:
  // nullptr: plaintext. `certificates` outlives the server.
  HttpServer(const HttpLimits& limits, CertificateWatcher* certificates);
  ~HttpServer() override;

  // Instead of bind_to_port: the port, any free one for 0; -1, with errno, where it cannot be
  // bound.
  int Bind(const std::string& host, int port);

  // Instead of stop(), which would wait for connections under way.
  void StopNow();

 private:
  bool process_and_close_socket(socket_t socket) override;
  bool Serve(socket_t socket);
  SslPtr NewTlsConnection() ABSL_LOCKS_EXCLUDED(mutex_);
  void Log(const std::string& event);

  const HttpLimits limits_;
  CertificateWatcher::Reader* const certificates_;
  const std::shared_ptr<HttpLoad> load_;
  RepeatLimiter log_limiter_;
  absl::Mutex mutex_;
  SslContextPtr context_ ABSL_GUARDED_BY(mutex_);
};

// The verified certificate's names. Empty over plaintext, and where no certificate was shown.
PeerIdentity IdentityOf(const httplib::Request& request);

}  // namespace sparsebalance::security
