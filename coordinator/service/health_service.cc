#include "coordinator/service/health_service.h"

#include <utility>

namespace sparsebalance {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// All of it happens under the service's mutex. gRPC runs no reaction inside StartWrite or Finish,
// so calling them there is safe.
class HealthService::Watcher : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* owner, std::string service)
      : owner_(owner), service_(std::move(service)) {}

  void Update() ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_->mutex_) {
    if (writing_ || finished_) return;
    const Status status = owner_->StatusOf(service_, HealthCheckResponse::SERVICE_UNKNOWN);
    if (said_ && response_.status() == status) return;
    said_ = true;
    writing_ = true;
    response_.set_status(status);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&owner_->mutex_);
    writing_ = false;
    if (ok) {
      // Whatever changed in the meantime; a watcher is told the latest, not every one.
      Update();
    } else {
      End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection is gone"));
    }
  }

  void OnCancel() override {
    absl::MutexLock lock(&owner_->mutex_);
    End(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&owner_->mutex_);
      owner_->watchers_.erase(this);
    }
    delete this;
  }

 private:
  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(owner_->mutex_) {
    if (std::exchange(finished_, true)) return;
    Finish(status);
  }

  HealthService* const owner_;
  const std::string service_;
  HealthCheckResponse response_;  // what was said last; unchanged while it is being written
  bool said_ = false;
  bool writing_ = false;
  bool finished_ = false;
};

class HealthService::Refusal : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

HealthService::HealthService(size_t max_watchers) : max_watchers_(max_watchers) {}

HealthService::~HealthService() = default;

HealthService::Status HealthService::StatusOf(const std::string& service, Status if_unknown) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return if_unknown;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::SetServing(const std::string& service, bool serving) {
  absl::MutexLock lock(&mutex_);
  serving_[service] = serving;
  for (Watcher* const watcher : watchers_) watcher->Update();
}

void HealthService::SetAllServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  for (auto& [service, status] : serving_) status = serving;
  for (Watcher* const watcher : watchers_) watcher->Update();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* const call = context->DefaultReactor();
  {
    absl::MutexLock lock(&mutex_);
    response->set_status(StatusOf(request->service(), HealthCheckResponse::SERVICE_UNKNOWN));
  }
  if (response->status() == HealthCheckResponse::SERVICE_UNKNOWN) {
    response->Clear();
    call->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such service here"));
  } else {
    call->Finish(grpc::Status::OK);
  }
  return call;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  absl::MutexLock lock(&mutex_);
  if (watchers_.size() >= max_watchers_) {
    return new Refusal(
        grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls of Watch"));
  }
  auto* const watcher = new Watcher(this, request->service());
  watchers_.insert(watcher);
  watcher->Update();
  return watcher;
}

}  // namespace sparsebalance
