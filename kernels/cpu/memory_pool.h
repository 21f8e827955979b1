#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <unordered_map>

#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// Host memory with reuse: a training step asks for similar large sizes again and again, and fresh
// pages from the system can cost more than the ops that fill them. Not thread-safe.
class MemoryPool {
 public:
  // limit_bytes: of memory in use and kept for reuse; 0: none.
  explicit MemoryPool(bool poison, int64_t limit_bytes = 0)
      : poison_(poison), limit_(limit_bytes > 0 ? limit_bytes : kNoLimit) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // 64-byte aligned; null where the system, or the limit, has no more. bytes >= 0.
  void* Allocate(int64_t bytes);
  void Free(void* data);

  // What Allocate(bytes) takes where it finds nothing to reuse.
  static int64_t TakenBytes(int64_t bytes);

  const MemoryStats& stats() const { return stats_; }
  void ResetPeak() { stats_.peak_bytes = stats_.live_bytes; }
  int64_t cached_bytes() const { return cached_bytes_; }
  int64_t limit() const { return limit_; }
  bool limited() const { return limit_ != kNoLimit; }

 private:
  void ReleaseCache();

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  bool poison_;
  int64_t limit_;
  MemoryStats stats_;
  int64_t cached_bytes_ = 0;
  std::multimap<int64_t, void*> cache_;        // by size
  std::unordered_map<void*, int64_t> in_use_;  // sizes
};

}  // namespace sparsebalance::kernels::cpu
