#include "worker/client/coordinator_client.h"

#include <utility>

#include "absl/time/clock.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace sparsebalance {

std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A dead host is noticed within half a minute even where no packet comes back; the coordinator
  // allows a ping every ten seconds.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  // A restarted coordinator is found again within about a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // The plan of a large job is bigger than the default limit of 4 MiB.
  arguments.SetMaxReceiveMessageSize(256 << 20);
  // Several jobs in one process keep connections of their own, so that one cannot block another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

CoordinatorClient::CoordinatorClient(std::shared_ptr<grpc::Channel> channel)
    : stub_(v1::Coordinator::NewStub(std::move(channel))) {}

template <typename Request, typename Response>
absl::StatusOr<Response> CoordinatorClient::Call(
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request, absl::Duration timeout, grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  {
    absl::MutexLock lock(&mutex_);
    if (interrupted_) return absl::CancelledError("calls to the coordinator were interrupted");
    active_.insert(&context);
  }
  Response response;
  const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
  {
    absl::MutexLock lock(&mutex_);
    active_.erase(&context);
  }
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

void CoordinatorClient::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
  for (grpc::ClientContext* context : active_) context->TryCancel();
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
