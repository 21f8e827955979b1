#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance::kernels {

// Where the blocks of a packed micro-batch lie. Sequence s holds tokens
// [cu_seqlens[s], cu_seqlens[s+1]) and blocks [first_block[s], first_block[s+1]); every block has
// `block_tokens` tokens but the last of a sequence, which may have fewer.
//
//   block_tokens 4, cu_seqlens {0, 6, 7}: blocks of tokens 0-3, 4-5 (sequence 0) and 6 (sequence 1)
struct PackedBlocks {
  int block_tokens = 0;
  std::vector<int64_t> cu_seqlens;      // [sequences + 1]
  std::vector<int64_t> first_block;     // [sequences + 1]
  std::vector<int64_t> block_begin;     // [blocks + 1], first token of each block
  std::vector<int32_t> block_sequence;  // [blocks]

  int64_t tokens() const { return cu_seqlens.back(); }
  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t blocks() const { return first_block.back(); }
  int64_t SequenceTokens(int64_t s) const { return cu_seqlens[s + 1] - cu_seqlens[s]; }
  int64_t SequenceBlocks(int64_t s) const { return first_block[s + 1] - first_block[s]; }
  int64_t BlockTokens(int64_t block) const { return block_begin[block + 1] - block_begin[block]; }
  // Blocks of the same sequence that lie strictly before `block`.
  int64_t PastBlocks(int64_t block) const { return block - first_block[block_sequence[block]]; }
};

// INVALID_ARGUMENT where block_tokens < 1, or cu_seqlens is not {0, ...} strictly increasing with
// at least one sequence, or does not fit the 32-bit token numbers of the block lists.
absl::StatusOr<PackedBlocks> MakePackedBlocks(const std::vector<int64_t>& cu_seqlens,
                                              int block_tokens);

// Budgets at which a coverage curve of a sequence of `blocks` blocks is given: those of
// {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, ...} below `blocks`, then `blocks` itself.
std::vector<int64_t> CoverageGrid(int64_t blocks);

// Coverage at `budget` by linear interpolation; `curve` holds the values at CoverageGrid(blocks).
double InterpolateCoverage(int64_t blocks, const std::vector<double>& curve, int64_t budget);

// Query-key pairs that the sequence attends to, token by token, for one query head.
double AttendedPairs(int64_t tokens, int block_tokens, int64_t budget);

}  // namespace sparsebalance::kernels
