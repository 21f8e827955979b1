#include "worker/comm/nccl_api.h"

namespace sparsebalance {

absl::StatusOr<std::shared_ptr<NcclApi>> SystemNcclApi() {
  return absl::UnimplementedError(
      "this build has no NCCL: the CUDA toolkit or NCCL was not found when it was configured; "
      "install both and build again, or use Gloo");
}

}  // namespace sparsebalance
