// Failed TLS handshakes of gRPC's servers and clients, said once a minute for each reason. gRPC has
// no hook for them, only lines in its log without the peer's address; this picks those out.
//
//   HandshakeLog handshakes({});                        // lives as long as the program
//   void LogFromGrpc(gpr_log_func_args* args) {
//     if (handshakes.Take(args->message)) return;
//     ...
//   }
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/security/repeat_limiter.h"

namespace sparsebalance::security {

class HandshakeLog {
 public:
  explicit HandshakeLog(std::function<absl::Time()> now = absl::Now);

  // Whether `line` is about a failed handshake; then it has been counted, and logged if it is time.
  bool Take(std::string_view line);

  // For a metric.
  uint64_t failures() const { return failures_.load(); }

 private:
  const std::function<absl::Time()> now_;
  RepeatLimiter limiter_;
  std::atomic<uint64_t> failures_{0};
};

}  // namespace sparsebalance::security
