// Limits of an HttpServer (http_server.h), apart from it because httplib's header is large.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace sparsebalance::security {

struct HttpLimits {
  size_t threads = 8;   // connections served at a time
  size_t waiting = 32;  // connections without a thread yet
  absl::Duration connection = absl::Seconds(10);
  // Enough for a handshake and a request over a slow link; after that a connection makes way.
  absl::Duration fair_time = absl::Milliseconds(500);
  size_t request_bytes = 32 * 1024;  // headers and body
};

}  // namespace sparsebalance::security
