// The steps a job has trained and the sequences they held: a check on the workers' own sampler
// position, which stays the authority.
//
// Not thread-safe: the job's mutex guards it. Writing is up to the caller:
//   if (auto write = journal.Add(batch)) store.Write(..., [=](ok) { journal.Written(step, *write,
//   ok); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

class ConsumedJournal {
 public:
  // `stored` is what the store holds.
  explicit ConsumedJournal(std::vector<v1::ConsumedBatch> stored = {});

  // Takes note of a batch. Returns the id of the write to make; nothing where the very batch is
  // stored or being stored. Another batch under the same step replaces the first.
  std::optional<uint64_t> Add(const v1::ConsumedBatch& batch);

  // The outcome of a write. One that was overtaken by a cut or a replacement is ignored.
  void Written(uint64_t step, uint64_t write_id, bool ok);

  // Training resumes at this step: what was consumed in it and later is not consumed. True where
  // there was such.
  bool CutBack(uint64_t next_step);

  // Epochs before the one before the current are forgotten: training never goes back so far without
  // a resume, after which nothing can be said about them. Returns the first epoch kept where that
  // has changed.
  std::optional<uint64_t> Prune();

  // Every known batch up to this step is stored; 0 where none is (see count).
  uint64_t stored_through_step() const;
  uint64_t stored_count() const;  // known batches that are stored; 0 where none can be told

  uint64_t consumed_in_epoch() const;  // distinct sequences of the latest epoch
  uint64_t consumed_twice() const;     // occurrences beyond the first within an epoch

  std::vector<v1::ConsumedBatch> Batches() const;  // by step

  size_t bytes() const;  // of memory, estimated

 private:
  struct Entry {
    v1::ConsumedBatch batch;
    uint64_t write_id = 0;  // of the write under way; 0: none
  };
  struct Epoch {
    absl::flat_hash_set<uint64_t> seen;               // sequence ids
    absl::flat_hash_map<uint64_t, uint32_t> repeats;  // occurrences beyond the first, of few
    uint64_t twice = 0;                               // the sum of them
  };

  void Count(const v1::ConsumedBatch& batch);
  void Uncount(const v1::ConsumedBatch& batch);

  std::map<uint64_t, Entry> entries_;  // by step
  std::set<uint64_t> not_stored_;      // steps
  std::map<uint64_t, Epoch> epochs_;
  size_t sequences_ = 0;  // of all entries
  uint64_t next_write_id_ = 1;
  uint64_t first_kept_epoch_ = 0;
};

}  // namespace sparsebalance
