// Which sequences make the next global batch: a seeded permutation of all ids for each epoch, cut
// into batches. Every id comes exactly once an epoch; the last batch of an epoch is smaller where
// the sizes do not divide. A pure function of (options, position): the same on any machine and with
// any standard library, so that ranks need not talk to agree.
//
//   auto sampler = GlobalBatchSampler::Create({.dataset_size = dataset.size(),
//                                              .global_batch_size = 16, .seed = 1});
//   GlobalBatch batch = sampler->Next();
//   checkpoint.position = sampler->position();  ...  sampler->Restore(checkpoint.position);
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::data {

struct SamplerOptions {
  uint64_t dataset_size = 0;
  uint64_t global_batch_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // false: ids in ascending order, in every epoch
};

// Where the next batch begins: `offset` ids of the epoch's permutation are consumed. With the
// options this is all there is to save. An offset of the dataset's size means the next epoch's
// start.
struct SamplerPosition {
  uint64_t epoch = 0;
  uint64_t offset = 0;

  friend bool operator==(const SamplerPosition&, const SamplerPosition&) = default;
};

struct GlobalBatch {
  SamplerPosition position;  // of its first id
  std::vector<uint64_t> ids;

  friend bool operator==(const GlobalBatch&, const GlobalBatch&) = default;
};

// The permutation of [0, size) for one epoch: Fisher-Yates, drawing from SplitMix64 over a counter,
// without bias. Changing it changes every training run: it is pinned by a test.
std::vector<uint64_t> EpochPermutation(uint64_t size, uint64_t seed, uint64_t epoch);

class GlobalBatchSampler {
 public:
  // INVALID_ARGUMENT where the dataset is empty or the batch size is 0.
  static absl::StatusOr<GlobalBatchSampler> Create(const SamplerOptions& options);

  // The next batch, and moves behind it.
  GlobalBatch Next();
  // The batch that `steps_ahead` calls of Next() would skip: 0 is the next one. Moves nothing.
  GlobalBatch Peek(uint64_t steps_ahead);

  SamplerPosition position() const { return position_; }
  // Continues as the sampler did whose position this is, also with another batch size.
  // INVALID_ARGUMENT where the offset lies beyond the dataset.
  absl::Status Restore(SamplerPosition position);

  uint64_t batches_per_epoch() const;
  const SamplerOptions& options() const { return options_; }

 private:
  using Order = std::vector<uint64_t>;

  explicit GlobalBatchSampler(const SamplerOptions& options) : options_(options) {}

  SamplerPosition After(SamplerPosition position, uint64_t steps) const;
  GlobalBatch BatchAt(SamplerPosition position);
  const Order& EpochOrder(uint64_t epoch);

  SamplerOptions options_;
  SamplerPosition position_;
  // Two epochs, so that looking ahead over an epoch's end does not draw them anew each time.
  struct CachedEpoch {
    uint64_t epoch = 0;
    Order order;  // empty: not drawn
  };
  CachedEpoch cache_[2];
};

}  // namespace sparsebalance::data
