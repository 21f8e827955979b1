// The gRPC face of a JobRegistry: translates, counts, and nothing else.
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/job_registry.h"
#include "grpcpp/support/status.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance {

class CoordinatorService : public v1::Coordinator::CallbackService {
 public:
  // Called once for each RPC with the method's short name and the code of its answer.
  using RpcObserver = std::function<void(const char* method, grpc::StatusCode code)>;

  // `registry` outlives the service.
  CoordinatorService(JobRegistry* registry, RpcObserver observer);

  // Waits until the answers of all calls have been handed to their connections, at most `timeout`.
  // Returns whether they have.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* context,
                                        const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse* response) override;
  grpc::ServerUnaryReactor* JoinJob(grpc::CallbackServerContext* context,
                                    const v1::JoinJobRequest* request,
                                    v1::JoinJobResponse* response) override;
  grpc::ServerUnaryReactor* ExchangeStep(grpc::CallbackServerContext* context,
                                         const v1::ExchangeStepRequest* request,
                                         v1::ExchangeStepResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* LeaveJob(grpc::CallbackServerContext* context,
                                     const v1::LeaveJobRequest* request,
                                     v1::LeaveJobResponse* response) override;
  grpc::ServerUnaryReactor* PutCoverage(grpc::CallbackServerContext* context,
                                        const v1::PutCoverageRequest* request,
                                        v1::PutCoverageResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override;
  grpc::ServerUnaryReactor* WatchJob(grpc::CallbackServerContext* context,
                                     const v1::WatchJobRequest* request,
                                     v1::WatchJobResponse* response) override;
  grpc::ServerUnaryReactor* PutProfile(grpc::CallbackServerContext* context,
                                       const v1::PutProfileRequest* request,
                                       v1::PutProfileResponse* response) override;
  grpc::ServerUnaryReactor* GetProfile(grpc::CallbackServerContext* context,
                                       const v1::GetProfileRequest* request,
                                       v1::GetProfileResponse* response) override;

 private:
  class CallReactor;

  template <typename Response>
  grpc::ServerUnaryReactor* AnswerNow(const char* method, absl::StatusOr<Response> answer,
                                      Response* response);
  template <typename Response, typename Start>
  grpc::ServerUnaryReactor* AnswerLater(const char* method, Response* response, Start start);

  JobRegistry* const registry_;
  const RpcObserver observer_;
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // that gRPC has not let go of
};

}  // namespace sparsebalance
