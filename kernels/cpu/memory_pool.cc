#include "kernels/cpu/memory_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kAlignment = 64;

// Sizes are rounded up to an eighth of their power of two, so that micro-batches of slightly
// different length share memory and at most 1/8 is wasted.
int64_t SizeClass(int64_t bytes) {
  int64_t step = kAlignment;
  while (step * 16 < bytes) step *= 2;
  return std::max(kAlignment, (bytes + step - 1) / step * step);
}

}  // namespace

MemoryPool::~MemoryPool() { ReleaseCache(); }

void* MemoryPool::Allocate(int64_t bytes) {
  const int64_t size = SizeClass(bytes);
  void* data = nullptr;
  if (const auto it = cache_.find(size); it != cache_.end()) {
    data = it->second.back();
    it->second.pop_back();
    if (it->second.empty()) cache_.erase(it);
    cached_bytes_ -= size;
  } else {
    // What is idle never exceeds what was needed at once.
    if (cached_bytes_ + stats_.live_bytes + size > stats_.peak_bytes * 2) ReleaseCache();
    data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (data == nullptr) {
      ReleaseCache();
      data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    }
    if (data == nullptr) return nullptr;
  }
  stats_.live_bytes += size;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
  if (poison_) std::memset(data, 0xFF, static_cast<size_t>(size));  // NaN as float and double
  return data;
}

void MemoryPool::Free(void* data, int64_t bytes) {
  if (data == nullptr) return;
  const int64_t size = SizeClass(bytes);
  stats_.live_bytes -= size;
  if (poison_) {  // tests want use after release to be seen by a sanitizer
    std::free(data);
    return;
  }
  cached_bytes_ += size;
  cache_[size].push_back(data);
}

void MemoryPool::ReleaseCache() {
  for (auto& [size, blocks] : cache_) {
    for (void* block : blocks) std::free(block);
  }
  cache_.clear();
  cached_bytes_ = 0;
}

}  // namespace sparsebalance::kernels::cpu
