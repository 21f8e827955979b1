// The leader epoch under which this process answers for a job: in every answer, so that workers can
// tell an old coordinator's from a new one's.
#pragma once

#include <atomic>
#include <cstdint>

namespace sparsebalance {

class JobEpoch {
 public:
  uint64_t current() const { return value_.load(std::memory_order_acquire); }

  // Epochs only rise: of two callers that learned of different ones the later counts.
  void RaiseTo(uint64_t epoch) {
    uint64_t known = current();
    while (known < epoch &&
           !value_.compare_exchange_weak(known, epoch, std::memory_order_acq_rel)) {
    }
  }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace sparsebalance
