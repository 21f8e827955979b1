#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/block_index.h"
#include "kernels/cuda/attention/block_lists.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr int kScanThreads = 256;
constexpr int kListThreads = 128;
constexpr int kOffsetThreads = 128;

// Lists are made from runs of consecutive blocks, each by a thread block of its own. More runs are
// more parallel, and cost more memory for counts.
constexpr int64_t kMostRuns = 64;
// The queries that one step of the fill handles, a bit for each, and the key blocks it can tell
// apart; sequences with more past blocks take more steps.
constexpr int kStepQueries = 128;
constexpr int kStepWords = kStepQueries / 32;
constexpr int kStepBlocks = 1024;

struct Runs {
  int64_t count, blocks;  // blocks of a run; the last may have fewer
};

Runs MakeRuns(const DeviceBlocks& blocks) {
  const int64_t length = (blocks.blocks + kMostRuns - 1) / kMostRuns;
  return {(blocks.blocks + length - 1) / length, length};
}

// sequence_offsets [sequences + 1]: pairs of one head before each sequence. One thread block.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kScanThreads)
    ScanSequences(DeviceBlocks blocks, DevicePtr<const int32_t> budgets,
                  DevicePtr<int64_t> sequence_offsets) {
  SB_SHARED_ARRAY(int64_t, warp_sums, kScanThreads / 32);
  int64_t carried = 0;
  for (int64_t begin = 0; begin < blocks.sequences; begin += kScanThreads) {
    const int64_t s = begin + LinearThread();
    int64_t pairs = 0;
    if (s < blocks.sequences) {
      const int64_t tokens = blocks.cu_seqlens[s + 1] - blocks.cu_seqlens[s];
      pairs = SequencePairs(budgets[s], tokens, blocks.block_tokens);
    }
    int64_t total = 0;
    const int64_t before = BlockExclusiveScan(pairs, warp_sums, &total);
    if (s < blocks.sequences) sequence_offsets[s] = carried + before;
    carried += total;
  }
  if (LinearThread() == 0) sequence_offsets[blocks.sequences] = carried;
}

// A thread block for each block of tokens.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kOffsetThreads)
    QueryOffsets(DeviceBlocks blocks, DevicePtr<const int32_t> budgets,
                 DevicePtr<const int64_t> sequence_offsets, DevicePtr<int64_t> query_offsets) {
  const int64_t block = BlockIdx().x;
  const int32_t sequence = blocks.block_sequence[block];
  const int64_t past = block - blocks.first_block[sequence];
  const int64_t count = SelectedCount(budgets[sequence], past);
  // Only the last block of a sequence may be short, and it lies before none.
  const int64_t first =
      sequence_offsets[sequence] + blocks.block_tokens * SelectedBefore(budgets[sequence], past);
  const int64_t begin = blocks.block_begin[block];
  const int64_t queries = blocks.block_begin[block + 1] - begin;
  for (int64_t i = LinearThread(); i < queries; i += kOffsetThreads) {
    query_offsets[begin + i] = first + i * count;
  }
  if (block == blocks.blocks - 1 && LinearThread() == 0) {
    query_offsets[blocks.tokens] = sequence_offsets[blocks.sequences];
  }
}

// counts [heads, runs, blocks]: how many queries of the run selected the block.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kListThreads)
    CountQueries(DeviceBlocks blocks, int64_t run_blocks, DevicePtr<const int64_t> query_offsets,
                 int64_t pairs, DevicePtr<const int32_t> query_blocks, DevicePtr<int32_t> counts) {
  const int64_t run = BlockIdx().x;
  const int64_t head = BlockIdx().y;
  const DevicePtr<int32_t> own = counts + (head * GridDim().x + run) * blocks.blocks;
  for (int64_t b = LinearThread(); b < blocks.blocks; b += kListThreads) own[b] = 0;
  SyncThreads();
  const int64_t first = run * run_blocks;
  const int64_t end = first + run_blocks < blocks.blocks ? first + run_blocks : blocks.blocks;
  const int64_t last_pair = query_offsets[blocks.block_begin[end]];
  for (int64_t i = query_offsets[blocks.block_begin[first]] + LinearThread(); i < last_pair;
       i += kListThreads) {
    AtomicAdd(own + query_blocks[head * pairs + i], 1);
  }
}

// counts becomes, for each run, the number of queries of earlier runs; the sum over all runs goes
// to block_offsets.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kListThreads)
    ScanRuns(int64_t blocks, int64_t runs, DevicePtr<int32_t> counts,
             DevicePtr<int64_t> block_offsets) {
  const int64_t block = GlobalThread();
  const int64_t head = BlockIdx().y;
  if (block >= blocks) return;
  const DevicePtr<int32_t> own = counts + head * runs * blocks + block;
  int32_t sum = 0;
  for (int64_t run = 0; run < runs; ++run) {
    const int32_t count = own[run * blocks];
    own[run * blocks] = sum;
    sum += count;
  }
  block_offsets[head * (blocks + 1) + block] = sum;
}

// Counts of a head become offsets. A thread block for each head.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kScanThreads)
    ScanBlocks(int64_t blocks, DevicePtr<int64_t> block_offsets) {
  SB_SHARED_ARRAY(int64_t, warp_sums, kScanThreads / 32);
  const DevicePtr<int64_t> own = block_offsets + int64_t{BlockIdx().x} * (blocks + 1);
  int64_t carried = 0;
  for (int64_t begin = 0; begin < blocks; begin += kScanThreads) {
    const int64_t b = begin + LinearThread();
    int64_t total = 0;
    const int64_t before = BlockExclusiveScan(b < blocks ? own[b] : 0, warp_sums, &total);
    if (b < blocks) own[b] = carried + before;
    carried += total;
  }
  if (LinearThread() == 0) own[blocks] = carried;
}

// `filled` [heads, runs, blocks] counts the queries that stand before this run's in each block. In
// a step every (query, block) pair sets a bit, and the bits below it say how many queries of the
// step come before: all pairs find their places at once, in an order that no thread decides.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kListThreads)
    FillBlockQueries(DeviceBlocks blocks, int64_t run_blocks,
                     DevicePtr<const int64_t> query_offsets, int64_t pairs,
                     DevicePtr<const int32_t> query_blocks, DevicePtr<const int64_t> block_offsets,
                     DevicePtr<int32_t> filled, DevicePtr<int32_t> block_queries) {
  SB_SHARED_ARRAY(uint32_t, bits, kStepBlocks * kStepWords);
  const int64_t run = BlockIdx().x;
  const int64_t head = BlockIdx().y;
  const DevicePtr<int32_t> own_filled = filled + (head * GridDim().x + run) * blocks.blocks;
  const DevicePtr<const int64_t> own_offsets = block_offsets + head * (blocks.blocks + 1);
  const DevicePtr<int32_t> to = block_queries + head * pairs;
  const int64_t run_begin = run * run_blocks;
  const int64_t run_end =
      run_begin + run_blocks < blocks.blocks ? run_begin + run_blocks : blocks.blocks;

  for (int64_t block = run_begin; block < run_end; ++block) {
    const int64_t block_end = blocks.block_begin[block + 1];
    const int64_t first_past = blocks.first_block[blocks.block_sequence[block]];
    for (int64_t query = blocks.block_begin[block]; query < block_end; query += kStepQueries) {
      const int64_t left = block_end - query;
      const int64_t first_pair = query_offsets[query];
      // All queries of a block have lists of one length.
      const int64_t length = query_offsets[query + 1] - first_pair;
      const int64_t step_pairs = (left < kStepQueries ? left : kStepQueries) * length;
      const DevicePtr<const int32_t> list = query_blocks + head * pairs + first_pair;
      const int64_t past_end = length > 0 ? block : first_past;
      for (int64_t window = first_past; window < past_end; window += kStepBlocks) {
        const int64_t window_blocks =
            past_end - window < kStepBlocks ? past_end - window : kStepBlocks;
        for (int64_t i = LinearThread(); i < window_blocks * kStepWords; i += kListThreads) {
          bits[i] = 0;
        }
        SyncThreads();
        for (int64_t i = LinearThread(); i < step_pairs; i += kListThreads) {
          const int64_t b = list[i] - window;
          const auto number = static_cast<int>(i / length);
          if (b >= 0 && b < window_blocks) {
            AtomicOr(bits + b * kStepWords + number / 32, 1U << (number % 32));
          }
        }
        SyncThreads();
        for (int64_t i = LinearThread(); i < step_pairs; i += kListThreads) {
          const int64_t b = list[i] - window;
          if (b < 0 || b >= window_blocks) continue;
          const auto number = static_cast<int>(i / length);
          int before = CountBits(bits[b * kStepWords + number / 32] & ((1U << (number % 32)) - 1U));
          for (int word = 0; word < number / 32; ++word) {
            before += CountBits(bits[b * kStepWords + word]);
          }
          to[own_offsets[window + b] + own_filled[window + b] + before] =
              static_cast<int32_t>(query + number);
        }
        SyncThreads();
        for (int64_t b = LinearThread(); b < window_blocks; b += kListThreads) {
          int queries = 0;
          SB_UNROLL
          for (int word = 0; word < kStepWords; ++word) {
            queries += CountBits(bits[b * kStepWords + word]);
          }
          own_filled[window + b] += queries;
        }
        SyncThreads();
      }
    }
  }
}

}  // namespace

int64_t SelectedPairs(const PackedBlocks& blocks, const std::vector<int32_t>& budgets) {
  int64_t pairs = 0;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    pairs += SequencePairs(budgets[s], blocks.SequenceTokens(s), blocks.block_tokens);
  }
  return pairs;
}

int64_t QueryOffsetsScratchBytes(const DeviceBlocks& blocks) {
  return (blocks.sequences + 1) * static_cast<int64_t>(sizeof(int64_t));
}

absl::Status LaunchQueryOffsets(StreamHandle stream, const DeviceBlocks& blocks,
                                DevicePtr<const int32_t> budgets, DevicePtr<int64_t> query_offsets,
                                DevicePtr<std::byte> scratch) {
  const DevicePtr<int64_t> sequence_offsets = PtrCast<int64_t>(scratch);
  SB_RETURN_IF_ERROR(Launch(ScanSequences, {.block = {kScanThreads}, .name = "scan_sequences"},
                            stream, blocks, budgets, sequence_offsets));
  return Launch(QueryOffsets,
                {.grid = {static_cast<unsigned>(blocks.blocks)},
                 .block = {kOffsetThreads},
                 .name = "query_offsets"},
                stream, blocks, budgets, sequence_offsets, query_offsets);
}

int64_t BlockListsScratchBytes(int num_heads, const DeviceBlocks& blocks) {
  return num_heads * MakeRuns(blocks).count * blocks.blocks * static_cast<int64_t>(sizeof(int32_t));
}

absl::Status LaunchBlockLists(StreamHandle stream, int num_heads, const DeviceBlocks& blocks,
                              DevicePtr<const int64_t> query_offsets, int64_t pairs,
                              DevicePtr<const int32_t> query_blocks,
                              DevicePtr<int64_t> block_offsets, DevicePtr<int32_t> block_queries,
                              DevicePtr<std::byte> scratch) {
  if (num_heads < 1 || num_heads > 65535 || pairs < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block lists of ", num_heads, " heads and ", pairs,
                     " pairs; heads must be between 1 and 65535, pairs not negative"));
  }
  const Runs runs = MakeRuns(blocks);
  const auto heads = static_cast<unsigned>(num_heads);
  const Dim3 run_grid{static_cast<unsigned>(runs.count), heads};
  const DevicePtr<int32_t> counts = PtrCast<int32_t>(scratch);
  SB_RETURN_IF_ERROR(
      Launch(CountQueries, {.grid = run_grid, .block = {kListThreads}, .name = "count_queries"},
             stream, blocks, runs.blocks, query_offsets, pairs, query_blocks, counts));
  SB_RETURN_IF_ERROR(Launch(
      ScanRuns,
      {.grid = {static_cast<unsigned>((blocks.blocks + kListThreads - 1) / kListThreads), heads},
       .block = {kListThreads},
       .name = "scan_runs"},
      stream, blocks.blocks, runs.count, counts, block_offsets));
  SB_RETURN_IF_ERROR(Launch(ScanBlocks,
                            {.grid = {heads}, .block = {kScanThreads}, .name = "scan_blocks"},
                            stream, blocks.blocks, block_offsets));
  return Launch(FillBlockQueries,
                {.grid = run_grid, .block = {kListThreads}, .name = "fill_block_queries"}, stream,
                blocks, runs.blocks, query_offsets, pairs, query_blocks, block_offsets, counts,
                block_queries);
}

}  // namespace sparsebalance::kernels::cuda
