#include "worker/train/token_cap.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "kernels/backend.h"
#include "kernels/create_backend.h"
#include "kernels/status_macros.h"
#include "worker/model/memory_model.h"
#include "worker/train/device_choice.h"

namespace sparsebalance {
namespace {

constexpr double kMiB = 1048576.0;

// Of this machine, or of the container where that has a limit of its own.
int64_t MachineMemory() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  std::ifstream file("/sys/fs/cgroup/memory.max");
  int64_t limit = 0;
  if (file >> limit) bytes = std::min(bytes, limit);  // "max" is no number
  return bytes;
}

}  // namespace

absl::Status FitTokenCap(TrainOptions& options, size_t ranks,
                         const std::function<void(const std::string&)>& log) {
  SB_ASSIGN_OR_RETURN(const kernels::BackendChoice choice, kernels::ChooseBackend(options.backend));
  SB_ASSIGN_OR_RETURN(const kernels::ElementType type,
                      ChoosePrecision(options.precision, choice.name));
  SB_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Backend> backend,
                      kernels::CreateBackend(choice.name, {.threads = options.threads_per_rank,
                                                           .activation_type = type}));
  const auto max_budget = static_cast<int32_t>(
      std::min<uint32_t>(options.plan.max_budget_blocks(), std::numeric_limits<int32_t>::max()));
  const uint64_t asked = options.plan.max_tokens_per_micro_batch();
  if (options.memory_limit_bytes > 0) {
    SB_ASSIGN_OR_RETURN(
        const int64_t tokens,
        model::MostTokensWithin(options.model, *backend, max_budget, options.memory_limit_bytes));
    if (static_cast<uint64_t>(tokens) < asked) {
      options.plan.set_max_tokens_per_micro_batch(static_cast<uint64_t>(tokens));
      log(absl::StrFormat(
          "the memory limit of %.0f MiB a rank holds micro-batches of %d tokens, fewer than "
          "--max-tokens-per-micro-batch %d; plans keep to %d",
          static_cast<double>(options.memory_limit_bytes) / kMiB, tokens, asked, tokens));
    }
  }
  if (options.memory_limit_bytes > 0 || backend->name() != "cpu") return absl::OkStatus();
  const int64_t share = MachineMemory() / static_cast<int64_t>(std::max<size_t>(1, ranks));
  const absl::StatusOr<int64_t> fits =
      model::MostTokensWithin(options.model, *backend, max_budget, share);
  // Where the model alone is too large for the machine nothing fits.
  const int64_t tokens = fits.ok() ? *fits : 0;
  if (!fits.ok() && !absl::IsResourceExhausted(fits.status())) return fits.status();
  if (static_cast<uint64_t>(tokens) < asked) {
    log(absl::StrFormat(
        "a rank, one of %d here, has %.0f MiB of memory, enough for micro-batches of %d tokens; "
        "--max-tokens-per-micro-batch is %d. --memory-limit-mib lowers the tokens, "
        "--activation-checkpointing the memory for each",
        ranks, static_cast<double>(share) / kMiB, tokens, asked));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
