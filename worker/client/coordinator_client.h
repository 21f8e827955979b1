// Blocking calls to the coordinator with a deadline, statuses in absl's form.
//
// Typed details (errors.proto) arrive as payloads of the status; read them with
// planner::GetDetail<v1::MissingRanks>(status). Every method may be called from any thread.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance {

// Plaintext channel with keepalive that a coordinator with default settings accepts.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address);

class CoordinatorClient {
 public:
  explicit CoordinatorClient(std::shared_ptr<grpc::Channel> channel);

  // `timeout` bounds the whole call, long poll included.
  absl::StatusOr<v1::RegisterJobResponse> RegisterJob(const v1::RegisterJobRequest& request,
                                                      absl::Duration timeout);
  absl::StatusOr<v1::JoinJobResponse> JoinJob(const v1::JoinJobRequest& request,
                                              absl::Duration timeout);
  // `context` is fresh; the caller may TryCancel() it while the call runs.
  absl::StatusOr<v1::ExchangeStepResponse> ExchangeStep(const v1::ExchangeStepRequest& request,
                                                        absl::Duration timeout,
                                                        grpc::ClientContext& context);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request,
                                                  absl::Duration timeout);
  absl::StatusOr<v1::LeaveJobResponse> LeaveJob(const v1::LeaveJobRequest& request,
                                                absl::Duration timeout);
  absl::StatusOr<v1::PutCoverageResponse> PutCoverage(const v1::PutCoverageRequest& request,
                                                      absl::Duration timeout);
  absl::StatusOr<v1::PutProfileResponse> PutProfile(const v1::PutProfileRequest& request,
                                                    absl::Duration timeout);
  absl::StatusOr<v1::GetProfileResponse> GetProfile(const v1::GetProfileRequest& request,
                                                    absl::Duration timeout);

  // Makes the calls that are under way return CANCELLED, and later ones too until Resume().
  void Interrupt();
  void Resume();

 private:
  using Stub = v1::Coordinator::Stub;
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, absl::Duration timeout,
                                grpc::ClientContext& context);
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    return Call(method, request, timeout, context);
  }

  std::unique_ptr<Stub> stub_;
  absl::Mutex mutex_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
