#include "worker/data/global_batch_sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance::data {
namespace {

// Output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class CounterRandom {
 public:
  explicit CounterRandom(uint64_t key) : key_(key) {}

  uint64_t Next() { return Mix(key_ + ++counter_ * 0x9e3779b97f4a7c15); }

  // Uniform in [0, bound): what lies beyond the last multiple of `bound` is drawn again.
  uint64_t Below(uint64_t bound) {
    const uint64_t rest = (std::numeric_limits<uint64_t>::max() % bound + 1) % bound;
    uint64_t value = Next();
    while (value > std::numeric_limits<uint64_t>::max() - rest) value = Next();
    return value % bound;
  }

 private:
  const uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace

std::vector<uint64_t> EpochPermutation(uint64_t size, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> order(size);
  std::iota(order.begin(), order.end(), uint64_t{0});
  CounterRandom random(Mix(Mix(seed + 0x9e3779b97f4a7c15) + epoch));
  for (uint64_t i = size; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  return order;
}

absl::StatusOr<GlobalBatchSampler> GlobalBatchSampler::Create(const SamplerOptions& options) {
  if (options.dataset_size == 0 || options.global_batch_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot sample batches of ", options.global_batch_size, " from a dataset of ",
                     options.dataset_size, " sequences; both must be at least 1"));
  }
  return GlobalBatchSampler(options);
}

uint64_t GlobalBatchSampler::batches_per_epoch() const {
  return (options_.dataset_size - 1) / options_.global_batch_size + 1;
}

absl::Status GlobalBatchSampler::Restore(SamplerPosition position) {
  if (position.offset > options_.dataset_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the saved offset ", position.offset, " lies beyond the dataset's ",
                     options_.dataset_size, " sequences; it was saved with another dataset"));
  }
  if (position.offset == options_.dataset_size) position = {position.epoch + 1, 0};
  position_ = position;
  return absl::OkStatus();
}

SamplerPosition GlobalBatchSampler::After(SamplerPosition position, uint64_t steps) const {
  const uint64_t batch = options_.global_batch_size;
  const uint64_t left = (options_.dataset_size - position.offset - 1) / batch + 1;
  if (steps < left) return {position.epoch, position.offset + steps * batch};
  steps -= left;
  return {position.epoch + 1 + steps / batches_per_epoch(), steps % batches_per_epoch() * batch};
}

GlobalBatch GlobalBatchSampler::Next() {
  GlobalBatch batch = BatchAt(position_);
  position_ = After(position_, 1);
  return batch;
}

GlobalBatch GlobalBatchSampler::Peek(uint64_t steps_ahead) {
  return BatchAt(After(position_, steps_ahead));
}

GlobalBatch GlobalBatchSampler::BatchAt(SamplerPosition position) {
  const uint64_t count =
      std::min(options_.global_batch_size, options_.dataset_size - position.offset);
  GlobalBatch batch = {position, std::vector<uint64_t>(count)};
  if (!options_.shuffle) {
    std::iota(batch.ids.begin(), batch.ids.end(), position.offset);
    return batch;
  }
  const Order& order = EpochOrder(position.epoch);
  std::copy_n(order.begin() + static_cast<int64_t>(position.offset), count, batch.ids.begin());
  return batch;
}

const GlobalBatchSampler::Order& GlobalBatchSampler::EpochOrder(uint64_t epoch) {
  CachedEpoch& slot = cache_[epoch % 2];
  if (slot.order.empty() || slot.epoch != epoch) {
    slot = {epoch, EpochPermutation(options_.dataset_size, options_.seed, epoch)};
  }
  return slot.order;
}

}  // namespace sparsebalance::data
