#include "coordinator/store/claim_errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

// As in planner/status_payload.h, which stores do not depend on: RPC layers expect this type URL.
template <class M>
void Attach(absl::Status& status, const M& detail) {
  status.SetPayload(absl::StrCat("type.googleapis.com/", M::descriptor()->full_name()),
                    absl::Cord(detail.SerializeAsString()));
}

}  // namespace

absl::Status NotOwnerError(const JobId& id, const std::string& owner_address,
                           uint64_t owner_epoch) {
  v1::NotOwner detail;
  *detail.mutable_job() = id.ToProto();
  detail.set_owner_address(owner_address);
  detail.set_owner_epoch(owner_epoch);
  absl::Status status = absl::UnavailableError(
      owner_address.empty()
          ? absl::StrCat("this coordinator does not answer for job ", id.ToString(),
                         ", and no other is known to; call again, any replica may take it")
          : absl::StrCat("job ", id.ToString(), " is with the coordinator at ", owner_address,
                         " (leader epoch ", owner_epoch, "); call it there"));
  Attach(status, detail);
  return status;
}

absl::Status CheckCredibleEpoch(uint64_t known_leader_epoch) {
  if (known_leader_epoch <= kMaxCredibleEpoch) return absl::OkStatus();
  v1::FieldViolation detail;
  detail.set_field("known_leader_epoch");
  detail.set_value(absl::StrCat(known_leader_epoch));
  detail.set_problem("no coordinator can have had it; send the epoch of a response");
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(detail.field(), " is ", detail.value(), ": ", detail.problem()));
  Attach(status, detail);
  return status;
}

}  // namespace sparsebalance
