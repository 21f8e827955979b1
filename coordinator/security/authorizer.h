// Decides whether a peer may make a call, by a policy that can be replaced while calls run.
//
//   Authorizer authorizer(*Policy::Parse(text, "authorization.json"), {});
//   absl::Status status = authorizer.Check(identity, Method::kJoinJob, "ml");
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/security/peer_identity.h"
#include "coordinator/security/policy.h"
#include "coordinator/security/repeat_limiter.h"
#include "coordinator/security/rpc_access.h"

namespace sparsebalance::security {

// The namespaces whose jobs a peer may read.
struct NamespaceView {
  bool every = false;
  absl::flat_hash_set<std::string> names;

  bool empty() const { return !every && names.empty(); }
  bool Contains(const std::string& name_space) const { return every || names.contains(name_space); }
};

class Authorizer {
 public:
  struct Options {
    std::function<absl::Time()> now = absl::Now;
    // Called for each denial, also for those that are not logged.
    std::function<void(Method)> on_denial = [](Method) {};
    // A peer that is denied the same call again is logged once in so long.
    absl::Duration log_interval = absl::Minutes(1);
    size_t logged_denials = 1024;  // different ones in that time
  };

  Authorizer(Policy policy, Options options);

  // UNAUTHENTICATED for a peer without a name; PERMISSION_DENIED, naming peer, call and namespace
  // and what would allow it, where no rule grants it. Neither depends on which jobs exist. An empty
  // namespace reads as `default` where a job is meant. `address` is where the peer calls from, for
  // the log; it is asked for only where there is something to log.
  absl::Status Check(const PeerIdentity& identity, Method method, std::string_view name_space,
                     const std::function<std::string()>& address = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // For ListJobs without a namespace: show only the jobs in these.
  NamespaceView VisibleNamespaces(const PeerIdentity& identity) const ABSL_LOCKS_EXCLUDED(mutex_);

  // From the next call on.
  void Replace(Policy policy) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::shared_ptr<const Policy> policy() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Denied(const PeerIdentity& identity, Method method, const std::string& message,
              const std::string& name_space, const std::function<std::string()>& address);

  const Options options_;
  RepeatLimiter log_limiter_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Policy> policy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance::security
