#include "coordinator/service/load_gate.h"

#include "absl/strings/str_cat.h"
#include "coordinator/service/retry_later.h"

namespace sparsebalance {
namespace {

// The part of a limit that calls of the class may fill, in eighths.
size_t Share(CallClass call_class) {
  switch (call_class) {
    case CallClass::kLiveness:
      return 8;
    case CallClass::kTraining:
      return 7;
    case CallClass::kOther:
      return 6;
  }
  return 6;
}

}  // namespace

absl::StatusOr<LoadGate::Pass> LoadGate::Enter(CallClass call_class, size_t bytes) {
  const size_t share = Share(call_class);
  const size_t most_calls = limits_.max_calls / 8 * share + limits_.max_calls % 8 * share / 8;
  const size_t most_bytes = limits_.max_bytes / 8 * share;
  const size_t calls = calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  const size_t held = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (calls <= most_calls && held <= most_bytes) return Pass(this, bytes);
  Exit(bytes);
  refused_[static_cast<size_t>(call_class)].fetch_add(1, std::memory_order_relaxed);
  return RetryLater(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the coordinator is overloaded: ", calls - 1, " calls with ", held - bytes,
                   " bytes of requests are under way; call again later"),
      limits_.retry_after);
}

void LoadGate::Exit(size_t bytes) {
  calls_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace sparsebalance
