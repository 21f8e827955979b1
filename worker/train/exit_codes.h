// Exit codes of sparsebalance-worker: what a supervisor should do next.
#pragma once

#include "absl/status/status.h"

namespace sparsebalance {

enum ExitCode : int {
  kExitFinished = 0,      // all steps are done
  kExitInternal = 1,      // a defect: report it
  kExitUsage = 2,         // bad flags, data or checkpoint: mend them first
  kExitRefused = 3,       // the coordinator has another job, node or rank in this place
  kExitPeerLost = 4,      // or evicted by an operator: restart from the last checkpoint
  kExitDisagreement = 5,  // ranks read different data or run different versions
  kExitDiverged = 6,      // gradients were not finite too often in a row
  kExitNoMemory = 7,      // give a rank more memory or fewer tokens a micro-batch
  kExitStopped = 75,      // stopped as asked, before the last step: start with --resume to go on
};

inline int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitFinished;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitPeerLost;
    case absl::StatusCode::kFailedPrecondition:
      return kExitDisagreement;
    case absl::StatusCode::kOutOfRange:
      return kExitDiverged;
    case absl::StatusCode::kResourceExhausted:
      return kExitNoMemory;
    case absl::StatusCode::kCancelled:
      return kExitStopped;
    default:
      return kExitInternal;
  }
}

}  // namespace sparsebalance
