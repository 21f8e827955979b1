// What is known about the coverage of sequences, over epochs.
//
// A sequence that was measured is remembered by its id, exactly but for rounding to 1/65535. For
// one that was not, the mean over sequences of about its length is used: an exponential moving
// average for every power of two of the number of blocks, kept on a grid relative to the length.
// Where nothing is known, the default family.
//
// Memory: at most 160 bytes a remembered sequence, index included; when the limit is reached, the
// one that was observed longest ago makes room. Not thread-safe; deterministic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

class CoverageMemory {
 public:
  static constexpr size_t kBytesPerSequence = 160;
  static constexpr size_t kSequencesPerChunk = 1024;

  // block_tokens >= 1; max_sequences >= 1.
  explicit CoverageMemory(uint32_t block_tokens, size_t max_sequences = 1'000'000);

  // A measurement; replaces what was known about the sequence. INVALID_ARGUMENT where the curve
  // does not pass CheckCurve or is empty.
  absl::Status Observe(uint64_t id, uint64_t tokens, const v1::CoverageCurve& curve);
  // The same unless the sequence is known already; returns whether it was taken.
  absl::StatusOr<bool> PutIfAbsent(uint64_t id, uint64_t tokens, const v1::CoverageCurve& curve);

  // On CoverageGrid. Always passes CheckCurve. A known id with another number of tokens is another
  // sequence.
  v1::CoverageCurve Lookup(uint64_t id, uint64_t tokens) const;
  bool Contains(uint64_t id, uint64_t tokens) const;

  size_t size() const { return records_.size(); }

  // For a store: chunk 0 holds the averages, every further one kSequencesPerChunk sequences, at
  // most 100 KiB. A sequence stays in its chunk, so that only chunks that changed need be written.
  size_t NumChunks() const;
  std::string Chunk(size_t index) const;
  // Indices of chunks that changed since the last call, rising.
  std::vector<size_t> TakeChangedChunks();
  // Adds a chunk's content, in any order of chunks; sequences that are known already win.
  // INVALID_ARGUMENT where the bytes are damaged or from another version.
  absl::Status RestoreChunk(std::string_view bytes);

 private:
  static constexpr size_t kStored = 40;    // points between (1, 0) and (N, 1)
  static constexpr size_t kRelative = 64;  // points of an average
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Record {
    uint64_t id;
    uint64_t tokens;
    uint32_t older, newer;  // slots, by last observation
    std::array<uint16_t, kStored> coverage;
  };
  struct Average {
    uint64_t count = 0;
    std::array<double, kRelative> coverage{};
  };

  uint32_t Blocks(uint64_t tokens) const;
  void Store(uint64_t id, uint64_t tokens, const std::array<uint16_t, kStored>& coverage);
  void Unlink(uint32_t slot);
  void MakeNewest(uint32_t slot);
  void MarkChanged(size_t chunk);
  void LearnAverage(uint32_t blocks, const v1::CoverageCurve& curve);

  uint32_t block_tokens_;
  size_t max_sequences_;
  std::vector<Record> records_;
  absl::flat_hash_map<uint64_t, uint32_t> slot_of_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  std::array<Average, 32> averages_;  // by floor(log2(blocks))
  std::vector<bool> changed_;         // [chunk]
};

}  // namespace sparsebalance::planner
