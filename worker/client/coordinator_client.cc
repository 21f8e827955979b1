#include "worker/client/coordinator_client.h"

#include <utility>

#include "absl/time/clock.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/status_conversion.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

CoordinatorClient::CoordinatorClient(const std::string& addresses, std::shared_ptr<ClientTls> tls)
    : tls_(std::move(tls)), replicas_(addresses) {}

CoordinatorClient::Connection CoordinatorClient::Current() {
  absl::MutexLock lock(&mutex_);
  // Read before the credentials are: what comes in between is then taken up by the next call.
  const uint64_t version = tls_ == nullptr ? 0 : tls_->version();
  if (connection_.stub == nullptr || version != tls_version_ ||
      connection_.address != replicas_.current()) {
    connection_.address = replicas_.current();
    connection_.channel = MakeCoordinatorChannel(connection_.address, tls_.get());
    connection_.stub = v1::Coordinator::NewStub(connection_.channel);
    tls_version_ = version;
  }
  return connection_;
}

void CoordinatorClient::Learn(const Connection& used, const absl::Status& status) {
  const std::string& address = used.address;
  absl::MutexLock lock(&mutex_);
  // gRPC goes on connecting only while a call waits on the channel, and on a channel that has
  // failed calls do not wait: one that came back would be found by chance, after seconds. The next
  // call opens a new channel and waits for it; the pauses between calls are the caller's.
  if (absl::IsUnavailable(status) && used.stub == connection_.stub &&
      used.channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
    connection_ = {};
  }
  if (const auto owner = planner::GetDetail<v1::NotOwner>(status)) {
    replicas_.Answered(address);
    if (!owner->owner_address().empty()) {
      replicas_.Redirected(owner->owner_address(), absl::Now());
    }
    return;
  }
  // A coordinator that shuts down is on its way to being unreachable; one that let the deadline of
  // a poll pass without ending it stands still.
  const bool silent =
      absl::IsDeadlineExceeded(status) && !planner::GetDetail<v1::MissingRanks>(status).has_value();
  if (absl::IsUnavailable(status) || silent) {
    replicas_.Unreachable(address, absl::Now());
  } else {
    replicas_.Answered(address);
  }
}

template <typename Request, typename Response>
absl::StatusOr<Response> CoordinatorClient::Call(
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request, absl::Duration timeout, grpc::ClientContext& context) {
  const Connection connection = Current();
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  {
    absl::MutexLock lock(&mutex_);
    if (interrupted_) return absl::CancelledError("calls to the coordinator were interrupted");
    active_.insert(&context);
  }
  Response response;
  const absl::Status status =
      FromGrpcStatus((connection.stub.get()->*method)(&context, request, &response));
  {
    absl::MutexLock lock(&mutex_);
    active_.erase(&context);
  }
  Learn(connection, status);
  if (!status.ok()) return status;
  return response;
}

void CoordinatorClient::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  for (grpc::ClientContext* context : active_) context->TryCancel();
}

bool CoordinatorClient::interrupted() {
  absl::MutexLock lock(&mutex_);
  return interrupted_;
}

void CoordinatorClient::Resume() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = false;
}

absl::StatusOr<v1::RegisterJobResponse> CoordinatorClient::RegisterJob(
    const v1::RegisterJobRequest& request, absl::Duration timeout) {
  return Call(&Stub::RegisterJob, request, timeout);
}

absl::StatusOr<v1::JoinJobResponse> CoordinatorClient::JoinJob(const v1::JoinJobRequest& request,
                                                               absl::Duration timeout) {
  return Call(&Stub::JoinJob, request, timeout);
}

absl::StatusOr<v1::ExchangeStepResponse> CoordinatorClient::ExchangeStep(
    const v1::ExchangeStepRequest& request, absl::Duration timeout, grpc::ClientContext& context) {
  return Call(&Stub::ExchangeStep, request, timeout, context);
}

absl::StatusOr<v1::HeartbeatResponse> CoordinatorClient::Heartbeat(
    const v1::HeartbeatRequest& request, absl::Duration timeout) {
  return Call(&Stub::Heartbeat, request, timeout);
}

absl::StatusOr<v1::LeaveJobResponse> CoordinatorClient::LeaveJob(const v1::LeaveJobRequest& request,
                                                                 absl::Duration timeout) {
  return Call(&Stub::LeaveJob, request, timeout);
}

absl::StatusOr<v1::PutCoverageResponse> CoordinatorClient::PutCoverage(
    const v1::PutCoverageRequest& request, absl::Duration timeout) {
  return Call(&Stub::PutCoverage, request, timeout);
}

absl::StatusOr<v1::PutProfileResponse> CoordinatorClient::PutProfile(
    const v1::PutProfileRequest& request, absl::Duration timeout) {
  return Call(&Stub::PutProfile, request, timeout);
}

absl::StatusOr<v1::GetProfileResponse> CoordinatorClient::GetProfile(
    const v1::GetProfileRequest& request, absl::Duration timeout) {
  return Call(&Stub::GetProfile, request, timeout);
}

}  // namespace sparsebalance
