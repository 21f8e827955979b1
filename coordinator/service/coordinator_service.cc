#include "coordinator/service/coordinator_service.h"

#include <utility>

#include "coordinator/service/status_conversion.h"

namespace sparsebalance {

// gRPC keeps a call until OnDone, also while OnCancel runs, and calls neither before the method
// that made it has returned.
class CoordinatorService::CallReactor : public grpc::ServerUnaryReactor {
 public:
  explicit CallReactor(CoordinatorService* service) : service_(service) {
    absl::MutexLock lock(&service_->mutex_);
    ++service_->calls_;
  }

  void set_cancel(CancelWait cancel) { cancel_ = std::move(cancel); }

  void OnCancel() override {
    if (cancel_) cancel_();
  }

  void OnDone() override {
    {
      absl::MutexLock lock(&service_->mutex_);
      --service_->calls_;
    }
    delete this;
  }

 private:
  CoordinatorService* const service_;
  CancelWait cancel_;
};

CoordinatorService::CoordinatorService(JobRegistry* registry, RpcObserver observer)
    : registry_(registry), observer_(std::move(observer)) {}

bool CoordinatorService::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_ == 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

template <typename Response>
grpc::ServerUnaryReactor* CoordinatorService::AnswerNow(const char* method,
                                                        absl::StatusOr<Response> answer,
                                                        Response* response) {
  const grpc::Status status = ToGrpcStatus(answer.status());
  if (answer.ok()) *response = *std::move(answer);
  observer_(method, status.error_code());
  auto* call = new CallReactor(this);
  call->Finish(status);
  return call;
}

template <typename Response, typename Start>
grpc::ServerUnaryReactor* CoordinatorService::AnswerLater(const char* method, Response* response,
                                                          Start start) {
  auto* call = new CallReactor(this);
  call->set_cancel(start([this, method, response, call](absl::StatusOr<Response> answer) {
    const grpc::Status status = ToGrpcStatus(answer.status());
    if (answer.ok()) *response = *std::move(answer);
    observer_(method, status.error_code());
    call->Finish(status);
  }));
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::RegisterJob(grpc::CallbackServerContext*,
                                                          const v1::RegisterJobRequest* request,
                                                          v1::RegisterJobResponse* response) {
  return AnswerNow("RegisterJob", registry_->RegisterJob(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::JoinJob(grpc::CallbackServerContext*,
                                                      const v1::JoinJobRequest* request,
                                                      v1::JoinJobResponse* response) {
  return AnswerLater("JoinJob", response,
                     [&](JoinDone done) { return registry_->JoinJob(*request, std::move(done)); });
}

grpc::ServerUnaryReactor* CoordinatorService::ExchangeStep(grpc::CallbackServerContext*,
                                                           const v1::ExchangeStepRequest* request,
                                                           v1::ExchangeStepResponse* response) {
  return AnswerLater("ExchangeStep", response, [&](ExchangeDone done) {
    return registry_->ExchangeStep(*request, std::move(done));
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext*,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  return AnswerNow("Heartbeat", registry_->Heartbeat(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::LeaveJob(grpc::CallbackServerContext*,
                                                       const v1::LeaveJobRequest* request,
                                                       v1::LeaveJobResponse* response) {
  return AnswerNow("LeaveJob", registry_->LeaveJob(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::PutCoverage(grpc::CallbackServerContext*,
                                                          const v1::PutCoverageRequest* request,
                                                          v1::PutCoverageResponse* response) {
  return AnswerNow("PutCoverage", registry_->PutCoverage(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::ListJobs(grpc::CallbackServerContext*,
                                                       const v1::ListJobsRequest* request,
                                                       v1::ListJobsResponse* response) {
  return AnswerNow("ListJobs", registry_->ListJobs(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::GetJob(grpc::CallbackServerContext*,
                                                     const v1::GetJobRequest* request,
                                                     v1::GetJobResponse* response) {
  return AnswerNow("GetJob", registry_->GetJob(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::GetPlan(grpc::CallbackServerContext*,
                                                      const v1::GetPlanRequest* request,
                                                      v1::GetPlanResponse* response) {
  return AnswerNow("GetPlan", registry_->GetPlan(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::WatchJob(grpc::CallbackServerContext*,
                                                       const v1::WatchJobRequest* request,
                                                       v1::WatchJobResponse* response) {
  return AnswerLater("WatchJob", response, [&](WatchDone done) {
    return registry_->WatchJob(*request, std::move(done));
  });
}

grpc::ServerUnaryReactor* CoordinatorService::PutProfile(grpc::CallbackServerContext*,
                                                         const v1::PutProfileRequest* request,
                                                         v1::PutProfileResponse* response) {
  return AnswerNow("PutProfile", registry_->PutProfile(*request), response);
}

grpc::ServerUnaryReactor* CoordinatorService::GetProfile(grpc::CallbackServerContext*,
                                                         const v1::GetProfileRequest* request,
                                                         v1::GetProfileResponse* response) {
  return AnswerNow("GetProfile", registry_->GetProfile(*request), response);
}

}  // namespace sparsebalance
