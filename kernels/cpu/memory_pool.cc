#include "kernels/cpu/memory_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{1} << 21;

// More than any host has in one piece. Some allocators end the process instead of refusing.
constexpr int64_t kLargest = int64_t{1} << 40;

void* FromSystem(int64_t size) {
  if (size >= kLargest) return nullptr;
  const int64_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
  // A hint: where the system has no huge pages nothing is lost but time.
  if (data != nullptr && size >= kHugePage) {
    madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);
  }
  return data;
}

}  // namespace

MemoryPool::~MemoryPool() { ReleaseCache(); }

// Whole huge pages where the size is worth one: a fault then brings 2 MiB instead of 4 KiB.
int64_t MemoryPool::TakenBytes(int64_t bytes) {
  const int64_t unit = bytes >= kHugePage ? kHugePage : kAlignment;
  return std::max(unit, (bytes + unit - 1) / unit * unit);
}

void* MemoryPool::Allocate(int64_t bytes) {
  int64_t size = TakenBytes(bytes);
  void* data = nullptr;
  // Micro-batches differ in length: a larger piece serves as well, within bounds.
  if (const auto it = cache_.lower_bound(size);
      it != cache_.end() && it->first <= size * 3 / 2 && it->first <= limit_ - stats_.live_bytes) {
    size = it->first;
    data = it->second;
    cache_.erase(it);
    cached_bytes_ -= size;
  } else {
    // What is idle never exceeds what was needed at once.
    if (size > limit_ - stats_.live_bytes) return nullptr;
    const int64_t total = cached_bytes_ + stats_.live_bytes + size;
    if (total > std::min(stats_.peak_bytes * 2, limit_)) ReleaseCache();
    data = FromSystem(size);
    if (data == nullptr) {
      ReleaseCache();
      data = FromSystem(size);
    }
    if (data == nullptr) return nullptr;
  }
  in_use_[data] = size;
  stats_.live_bytes += size;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  if (poison_) std::memset(data, 0xFF, static_cast<size_t>(size));  // NaN as float and double
  return data;
}

void MemoryPool::Free(void* data) {
  const auto it = in_use_.find(data);
  if (it == in_use_.end()) return;
  const int64_t size = it->second;
  in_use_.erase(it);
  stats_.live_bytes -= size;
  if (poison_) {  // tests want use after release to be seen by a sanitizer
    std::free(data);
    return;
  }
  cached_bytes_ += size;
  cache_.emplace(size, data);
}

void MemoryPool::ReleaseCache() {
  for (const auto& [size, data] : cache_) std::free(data);
  cache_.clear();
  cached_bytes_ = 0;
}

}  // namespace sparsebalance::kernels::cpu
