// Refuses calls before there are more of them than the process can hold. What keeps jobs alive is
// refused last: a coordinator that drops heartbeats kills the jobs it serves.
//
//   absl::StatusOr<LoadGate::Pass> pass = gate.Enter(CallClass::kTraining, request.ByteSizeLong());
//   if (!pass.ok()) return pass.status();   // RESOURCE_EXHAUSTED (RetryLater)
//   ... the call counts until the pass is destroyed ...
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sparsebalance {

enum class CallClass {
  kLiveness,  // Heartbeat, LeaveJob: up to the limits
  kTraining,  // RegisterJob, JoinJob, ExchangeStep: up to seven eighths of them
  kOther,     // readers, operators, bulk transfers: up to three quarters
};

class LoadGate {
 public:
  struct Limits {
    size_t max_calls = 50'000;
    size_t max_bytes = size_t{1} << 30;
    absl::Duration retry_after = absl::Milliseconds(200);
  };

  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), bytes_(other.bytes_) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gate_, other.gate_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Pass() {
      if (gate_ != nullptr) gate_->Exit(bytes_);
    }

   private:
    friend class LoadGate;
    Pass(LoadGate* gate, size_t bytes) : gate_(gate), bytes_(bytes) {}

    LoadGate* gate_ = nullptr;
    size_t bytes_ = 0;
  };

  explicit LoadGate(Limits limits) : limits_(limits) {}

  // The gate outlives its passes. Thread-safe, without locks.
  absl::StatusOr<Pass> Enter(CallClass call_class, size_t bytes);

  size_t calls() const { return calls_.load(std::memory_order_relaxed); }
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t refused(CallClass call_class) const {
    return refused_[static_cast<size_t>(call_class)].load(std::memory_order_relaxed);
  }

 private:
  void Exit(size_t bytes);

  const Limits limits_;
  std::atomic<size_t> calls_{0};
  std::atomic<size_t> bytes_{0};
  std::array<std::atomic<uint64_t>, 3> refused_{};
};

}  // namespace sparsebalance
