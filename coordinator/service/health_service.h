// grpc.health.v1 of our own. The one that comes with gRPC cannot be served by itself: a server with
// nothing else does not build.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "health/v1/health.grpc.pb.h"

namespace sparsebalance {

class HealthService : public grpc::health::v1::Health::CallbackService {
 public:
  // At most `max_watchers` calls of Watch at a time; RESOURCE_EXHAUSTED beyond.
  explicit HealthService(size_t max_watchers);
  // The server has been shut down before, so no call is left.
  ~HealthService() override;

  // Adds `service` where it was not there. Watchers hear of the change.
  void SetServing(const std::string& service, bool serving) ABSL_LOCKS_EXCLUDED(mutex_);
  // Every service that is there.
  void SetAllServing(bool serving) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;
  class Watcher;
  class Refusal;

  Status StatusOf(const std::string& service, Status if_unknown) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_watchers_;
  absl::Mutex mutex_;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_);
  std::set<Watcher*> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
