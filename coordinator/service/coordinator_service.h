// The gRPC face of a JobRegistry: asks who calls and whether there is room, translates, counts, and
// nothing else.
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/call_authorizer.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/load_gate.h"
#include "coordinator/service/state_rpcs.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance {

// JoinJob's messages are taken as bytes: its answer is the same for all nodes of a job and made
// once.
class CoordinatorService
    : public v1::Coordinator::WithRawCallbackMethod_JoinJob<v1::Coordinator::CallbackService> {
 public:
  // Called once for each RPC with the method's short name and the code of its answer.
  using RpcObserver = std::function<void(const char* method, grpc::StatusCode code)>;

  // All outlive the service.
  struct Parts {
    JobRegistry* registry;
    security::Authorizer* authorizer;  // null: everyone may do everything
    LoadGate* gate;
    StateRpcs* state;
    RpcObserver observer;
    std::function<void()> fenced;  // a call of a process whose generation or incarnation is over
    // Begins to drain the process after the answer; for the RPC of that name.
    std::function<void(const std::string& reason)> drain;
  };

  explicit CoordinatorService(Parts parts);

  // Waits until the answers of all calls have been handed to their connections, at most `timeout`.
  // Returns whether they have.
  bool WaitUntilIdle(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* context,
                                        const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse* response) override;
  grpc::ServerUnaryReactor* JoinJob(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
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
  grpc::ServerUnaryReactor* EvictNode(grpc::CallbackServerContext* context,
                                      const v1::EvictNodeRequest* request,
                                      v1::EvictNodeResponse* response) override;
  grpc::ServerUnaryReactor* RemoveJob(grpc::CallbackServerContext* context,
                                      const v1::RemoveJobRequest* request,
                                      v1::RemoveJobResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerWriteReactor<v1::StateRecord>* ExportState(
      grpc::CallbackServerContext* context, const v1::ExportStateRequest* request) override;
  grpc::ServerReadReactor<v1::ImportStateRequest>* ImportState(
      grpc::CallbackServerContext* context, v1::ImportStateResponse* response) override;

 private:
  class CallReactor;

  // Who calls, with its place among the calls under way taken; or why it is refused.
  template <typename Request>
  absl::StatusOr<security::PeerIdentity> Admit(const grpc::CallbackServerContext& context,
                                               CallClass call_class, const Request& request,
                                               CallReactor& call);
  template <typename Response>
  void Answer(const char* method, CallReactor* call, absl::StatusOr<Response> answer,
              Response* response);
  // `answer` is asked only if the call is let in.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerNow(
      const char* method, CallClass call_class, grpc::CallbackServerContext* context,
      const Request* request, Response* response,
      absl::StatusOr<Response> (JobRegistry::*answer)(const Request&));
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerLater(
      const char* method, CallClass call_class, grpc::CallbackServerContext* context,
      const Request* request, Response* response,
      CancelWait (JobRegistry::*start)(const Request&,
                                       absl::AnyInvocable<void(absl::StatusOr<Response>)>));
  void Began() ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended() ABSL_LOCKS_EXCLUDED(mutex_);

  const Parts parts_;
  const security::CallAuthorizer authorizer_;
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;  // that gRPC has not let go of
};

}  // namespace sparsebalance
