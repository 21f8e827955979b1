// A long-range recall task, generated from a seed: key-value retrieval at stated distances.
//
//   . . [3:5] . . . | . . [7:1] . . | . . Q3 5 . . .        (| ends a block of attention)
//
// A sequence is filler with pairs and queries strewn in. A pair is one token that stands for a key
// and its value. A query is a token that names a key; the token after it is the value that was
// paired with that key, and is the only token that is supervised. A key is paired once and queried
// at most once in a sequence, so the pair is the one place where the answer can be found: its
// distance, in blocks, is the distance that attention must bridge. Guessing gets one in `values`
// right.
//
// Pairs are single tokens so that one layer of attention can find them: the task is about what
// attention reaches, and a small model learns it in a few hundred steps. With key and value in two
// tokens a model must first grow an induction circuit over two layers, which takes far longer and
// has nothing to do with distance.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::eval {

// Blocks between the query's block and its pair's; 0 is the own block. Both ends included.
struct DistanceRange {
  int64_t first = 0;
  int64_t last = 0;

  friend bool operator==(const DistanceRange&, const DistanceRange&) = default;
};

// "0,1,2-3,4-7": ranges that ascend and do not overlap. INVALID_ARGUMENT names the part at fault.
absl::StatusOr<std::vector<DistanceRange>> ParseDistances(const std::string& text);
// What ParseDistances reads.
std::string DistancesText(const std::vector<DistanceRange>& ranges);
// "own block" for 0, else "3" or "4-7".
std::string DistanceName(const DistanceRange& range);

struct RecallTaskOptions {
  uint64_t seed = 1;
  int64_t block_tokens = 16;
  // Of each sequence, drawn with equal chance; a length that stands twice comes twice as often.
  std::vector<int64_t> lengths = {64, 128, 128, 256, 512};
  std::vector<DistanceRange> distances = {{0, 0}, {1, 1}, {2, 3}, {4, 7}, {8, 15}, {16, 31}};
  int64_t keys = 32;
  int64_t values = 4;
  int64_t fillers = 1;
  int64_t pairs_per_block = 1;
  int64_t queries_per_block = 2;  // at most

  // INVALID_ARGUMENT names the field: sizes, a block too small for its items, too few keys for the
  // longest sequence.
  absl::Status Validate() const;

  int64_t MaxBlocks() const;  // of the longest sequence

  // Token ids: fillers, queries, values, pairs.
  int64_t Query(int64_t key) const { return fillers + key; }
  int64_t Value(int64_t value) const { return fillers + keys + value; }
  int64_t Pair(int64_t key, int64_t value) const {
    return fillers + keys + values + key * values + value;
  }
  int64_t VocabularySize() const { return Pair(keys, 0); }
};

struct RecallQuery {
  int64_t position = 0;       // of the query token: the prediction made there is the answer
  int64_t pair_position = 0;  // of the pair that answers it
  int64_t distance_blocks = 0;
};

struct RecallSequence {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;  // 1 at answers, as IndexedDatasetBuilder takes it
  std::vector<RecallQuery> queries;
};

// A pure function of options and index, the same on any machine. Options must be valid. The
// distance at which a pair is queried is drawn evenly from the ranges that have room in the
// sequence.
RecallSequence MakeRecallSequence(const RecallTaskOptions& options, uint64_t index);

// Writes sequences 0 to count-1 as a data set that trains by the ordinary path.
absl::Status WriteRecallDataset(const RecallTaskOptions& options, uint64_t count,
                                const std::string& prefix, bool overwrite);

}  // namespace sparsebalance::eval
