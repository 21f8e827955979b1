#include "coordinator/service/retry_later.h"

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

absl::Status RetryLater(absl::StatusCode code, const std::string& message, absl::Duration after) {
  v1::RetryLater detail;
  detail.set_retry_after_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(after)));
  absl::Status status(code, message);
  planner::AttachDetail(status, detail);
  return status;
}

absl::Status NotHeldByAnyone(const JobId& id) {
  v1::NotOwner detail;
  *detail.mutable_job() = id.ToProto();
  absl::Status status = absl::UnavailableError(absl::StrCat(
      "no replica of the coordinator answers for job ", id.ToString(), " now; register it again"));
  planner::AttachDetail(status, detail);
  return status;
}

}  // namespace sparsebalance
