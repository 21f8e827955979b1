#pragma once

// Steps of the block index that host and device code share: plain loops over plain pointers, no
// allocation. A query's list of key blocks (CSR) has a length that budget and position alone
// decide, so offsets serve every head; its transpose (CSC) is made by count, scan and stable fill.

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"

namespace sparsebalance::kernels {

// Past blocks that a query with `past` candidates selects under `budget` (own block included).
SB_HOST_DEVICE inline int64_t SelectedCount(int64_t budget, int64_t past) {
  const int64_t wanted = budget < 1 ? 0 : budget - 1;
  return wanted < past ? wanted : past;
}

// What one query in each of the first `block` blocks of a sequence selects, added up.
SB_HOST_DEVICE inline int64_t SelectedBefore(int64_t budget, int64_t block) {
  const int64_t most = SelectedCount(budget, block);
  return most * (most - 1) / 2 + (block - most) * most;
}

// (query, past block) pairs of one head of a sequence.
SB_HOST_DEVICE inline int64_t SequencePairs(int64_t budget, int64_t tokens, int block_tokens) {
  const int64_t last = (tokens - 1) / block_tokens;
  return block_tokens * SelectedBefore(budget, last) +
         (tokens - last * block_tokens) * SelectedCount(budget, last);
}

// The order of the keys as integers is the order of the scores; -0 and 0 have one key.
SB_HOST_DEVICE inline int32_t ScoreKey(float score) {
  const float normalized = score + 0.0F;
  int32_t bits = 0;
  std::memcpy(&bits, &normalized, sizeof(bits));
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}
SB_HOST_DEVICE inline float ScoreOfKey(int32_t key) {
  const int32_t bits = key ^ ((key >> 31) & 0x7FFFFFFF);
  float score = 0;
  std::memcpy(&score, &bits, sizeof(score));
  return score;
}

// Writes query_offsets[0..tokens]: where each token's list of selected blocks begins.
// budgets[s] is sequence s's budget in blocks.
SB_HOST_DEVICE inline void FillQueryOffsets(const int64_t* block_begin,
                                            const int32_t* block_sequence,
                                            const int64_t* first_block, int64_t blocks,
                                            const int32_t* budgets, int64_t* query_offsets) {
  int64_t offset = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int32_t sequence = block_sequence[block];
    const int64_t count = SelectedCount(budgets[sequence], block - first_block[sequence]);
    for (int64_t t = block_begin[block]; t < block_begin[block + 1]; ++t) {
      query_offsets[t] = offset;
      offset += count;
    }
  }
  query_offsets[block_begin[blocks]] = offset;
}

// For one head: block_offsets[b] = queries that selected a block before b, for b in [0, blocks].
SB_HOST_DEVICE inline void CountAndScan(const int32_t* query_blocks, int64_t pairs, int64_t blocks,
                                        int64_t* block_offsets) {
  for (int64_t b = 0; b <= blocks; ++b) block_offsets[b] = 0;
  for (int64_t i = 0; i < pairs; ++i) ++block_offsets[query_blocks[i] + 1];
  for (int64_t b = 0; b < blocks; ++b) block_offsets[b + 1] += block_offsets[b];
}

// For one head: block_queries lists, block after block, the tokens that selected it in ascending
// order. `cursor` is scratch of `blocks` entries.
SB_HOST_DEVICE inline void StableFill(const int64_t* query_offsets, const int32_t* query_blocks,
                                      int64_t tokens, int64_t blocks, const int64_t* block_offsets,
                                      int64_t* cursor, int32_t* block_queries) {
  for (int64_t b = 0; b < blocks; ++b) cursor[b] = block_offsets[b];
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = query_offsets[t]; i < query_offsets[t + 1]; ++i) {
      block_queries[cursor[query_blocks[i]]++] = static_cast<int32_t>(t);
    }
  }
}

}  // namespace sparsebalance::kernels
