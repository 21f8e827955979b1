#include "coordinator/service/status_conversion.h"

#include <map>
#include <string>

#include "absl/strings/cord.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message(status.message());
  // Payloads are visited in no stated order; the wire order should not depend on it.
  std::map<std::string, std::string> payloads;
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    payloads[std::string(type_url)] = std::string(payload);
  });
  v1::RpcStatus details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(message);
  for (auto& [type_url, payload] : payloads) {
    google::protobuf::Any* any = details.add_details();
    any->set_type_url(type_url);
    any->set_value(payload);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code >= static_cast<int>(absl::StatusCode::kCancelled) &&
                     code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status converted(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                         status.error_message());
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return converted;
  for (const google::protobuf::Any& any : details.details()) {
    converted.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return converted;
}

}  // namespace sparsebalance
