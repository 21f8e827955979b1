// sbctl's calls to a coordinator: with a deadline, and following the replica that answers for a
// job.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

class CoordinatorSession {
 public:
  using Stub = v1::Coordinator::Stub;
  using Connect = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

  // `timeout` bounds each call, a long poll's own wait not counted.
  CoordinatorSession(std::string address, absl::Duration timeout, Connect connect)
      : connect_(std::move(connect)), timeout_(timeout), home_(std::move(address)) {
    MoveTo(home_);
  }

  const std::string& address() const { return address_; }
  absl::Duration timeout() const { return timeout_; }
  Stub* stub() { return stub_.get(); }

  // Where another replica answers, goes there and stays there for as long as it can be reached.
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response,
                    absl::Duration wait = absl::ZeroDuration()) {
    // Jobs move rarely: more redirects in a row than this are a circle.
    constexpr int kMostRedirects = 3;
    absl::Status status;
    for (int redirects = 0; redirects <= kMostRedirects; ++redirects) {
      grpc::ClientContext context;
      SetDeadline(context, wait);
      status = FromGrpcStatus((stub_.get()->*method)(&context, request, response));
      const auto elsewhere = planner::GetDetail<v1::NotOwner>(status);
      if (!elsewhere || elsewhere->owner_address().empty() ||
          elsewhere->owner_address() == address_) {
        break;
      }
      MoveTo(elsewhere->owner_address());
    }
    // Who was said to answer is gone: the next call asks again where the first one did.
    const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (silent && address_ != home_ && !planner::GetDetail<v1::NotOwner>(status)) MoveTo(home_);
    return status;
  }

  void SetDeadline(grpc::ClientContext& context, absl::Duration wait) const {
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoNanoseconds(timeout_ + wait));
  }

  // The same coordinator's other replica.
  CoordinatorSession At(const std::string& address) const {
    return CoordinatorSession(address, timeout_, connect_);
  }

 private:
  void MoveTo(std::string address) {
    address_ = std::move(address);
    stub_ = v1::Coordinator::NewStub(connect_(address_));
  }

  Connect connect_;
  absl::Duration timeout_;
  std::string home_;
  std::string address_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace sparsebalance
