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
#include "worker/client/channel_credentials.h"
#include "worker/client/replica_list.h"

namespace sparsebalance {

class CoordinatorClient {
 public:
  // `addresses`: HOST:PORT of one replica or of several, with commas between. Calls go to one of
  // them, to the next once it cannot be reached, and to the one that a NotOwner answer names; each
  // call is made once, trying again is up to the caller.
  // `tls` null: plaintext. When the client's certificate or the CA is rotated, new calls go through
  // a connection opened with the new ones; those under way end on the old.
  CoordinatorClient(const std::string& addresses, std::shared_ptr<ClientTls> tls);

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
    absl::StatusOr<Response> answer = Call(method, request, timeout, context);
    // Nobody but us could mean it by that: a coordinator that goes cancels what waits in it.
    if (absl::IsCancelled(answer.status()) && !interrupted()) {
      return absl::UnavailableError("the coordinator went away during the call");
    }
    return answer;
  }
  bool interrupted() ABSL_LOCKS_EXCLUDED(mutex_);

  // A stub, the channel of its calls and the address that they go to.
  struct Connection {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<Stub> stub;
  };
  Connection Current() ABSL_LOCKS_EXCLUDED(mutex_);
  // Draws its conclusions about where to call next.
  void Learn(const Connection& used, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<ClientTls> tls_;
  absl::Mutex mutex_;
  ReplicaList replicas_ ABSL_GUARDED_BY(mutex_);
  uint64_t tls_version_ ABSL_GUARDED_BY(mutex_) = 0;
  Connection connection_ ABSL_GUARDED_BY(mutex_);
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
