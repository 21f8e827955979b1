#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/cuda/attention/router.h"
#include "kernels/cuda/attention/router_scores.h"
#include "kernels/cuda/attention/warp.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

constexpr int kCurveThreads = 128;
// Thread blocks that share the sampled queries of one sequence and head.
constexpr int kSlices = 8;
// The grid of a sequence of 2^31 - 1 blocks has fewer points.
constexpr int kMostPoints = 64;
// Thread blocks that a multiprocessor holds at least; with more, the compiler spills registers.
constexpr int kBlocksOfMultiprocessor = 4;
constexpr int64_t kReserved = kRouterWarps * kMostPoints * static_cast<int64_t>(sizeof(double));

// Sampled queries of a sequence that have past blocks: the last token, and every stride-th before.
SB_DEVICE inline int SampledQueries(int tokens, int block_tokens, int stride) {
  return tokens > block_tokens ? (tokens - 1 - block_tokens) / stride + 1 : 0;
}

// The softmax mass of keys[0..count) on the `wanted` largest, not divided by the whole; the whole
// where wanted is count. By one warp.
template <typename Keys>
SB_DEVICE inline double TopMass(Keys keys, int count, int wanted, float max, float scale) {
  Threshold threshold{0, 0};
  const bool all = wanted >= count;
  if (!all) threshold = FindThreshold(keys, count, wanted);
  double mass = 0;
  for (int i = LaneId(); i < count; i += 32) {
    const int32_t key = keys[i];
    if (all || key > threshold.key) mass += std::exp((ScoreOfKey(key) - max) * scale);
  }
  mass = WarpSum(mass);
  // Which of the tied ones are taken does not matter here.
  if (threshold.ties > 0) {
    mass +=
        threshold.ties * static_cast<double>(std::exp((ScoreOfKey(threshold.key) - max) * scale));
  }
  return mass;
}

// sums [sequences, heads, kSlices, grid_size]: covered shares, added over the slice's queries.
template <typename T, bool kScoresInScratch>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kRouterThreads, kBlocksOfMultiprocessor)
    CoverageSums(AttentionShape shape, DeviceBlocks blocks, DevicePtr<const T> q,
                 DevicePtr<const float> means, int sample_stride, float scale, int grid_size,
                 DevicePtr<double> sums, DevicePtr<int32_t> scratch) {
  SB_SHARED_ARRAY(double, warp_sums, kRouterWarps* kMostPoints);
  const SharedPtr<float> shared = DynamicShared<float>();
  const int64_t columns = blocks.most_blocks;
  const auto keys = [&] {
    if constexpr (kScoresInScratch) {
      return scratch + BlockIdx().x * kFewRows * columns;
    } else {
      return PtrCast<int32_t>(shared + TileFloats(kFewRows, shape.head_dim));
    }
  }();
  const int64_t units = blocks.sequences * shape.num_heads * kSlices;
  for (int64_t unit = BlockIdx().x; unit < units; unit += GridDim().x) {
    const auto slice = static_cast<int>(unit % kSlices);
    const int64_t head = unit / kSlices % shape.num_heads;
    const int64_t sequence = unit / kSlices / shape.num_heads;
    const int64_t begin = blocks.cu_seqlens[sequence];
    // Divisions of 64 bits, and of doubles, are calls that make registers spill.
    const auto tokens = static_cast<int>(blocks.cu_seqlens[sequence + 1] - begin);
    const int64_t first_block = blocks.first_block[sequence];
    const int queries = SampledQueries(tokens, blocks.block_tokens, sample_stride);
    const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const SharedPtr<double> own_sums = warp_sums + WarpId() * kMostPoints;
    for (int point = LaneId(); point < grid_size; point += 32) own_sums[point] = 0;
    SyncWarp();
    for (int query = slice * kFewRows; query < queries; query += kSlices * kFewRows) {
      const int rows = queries - query < kFewRows ? queries - query : kFewRows;
      // Row r is a token of the sequence, later ones first; row 0 has the most past blocks.
      const auto token = [&](int row) { return tokens - 1 - (query + row) * sample_stride; };
      const int most_past = token(0) / blocks.block_tokens;
      ScoreRows<T, kFewRows>(
          shape.head_dim, rows,
          [&](int row) {
            return q + (begin + token(row)) * shape.q_stride + head * shape.head_dim;
          },
          means + (kv_head * blocks.blocks + first_block) * shape.head_dim, most_past, shared,
          [&](int row, int64_t b, float score) {
            // As on the CPU, so that a diverged model has curves at all.
            keys[row * columns + b] = ScoreKey(std::isnan(score) ? -FLT_MAX : score);
          });
      for (int row = WarpId(); row < rows; row += kRouterWarps) {
        const auto row_keys = keys + row * columns;
        const int past = token(row) / blocks.block_tokens;
        int32_t largest = row_keys[0];
        for (int i = LaneId(); i < past; i += 32) {
          largest = row_keys[i] > largest ? row_keys[i] : largest;
        }
        const float max = ScoreOfKey(WarpMax(largest));
        const float inverse = 1.0F / static_cast<float>(TopMass(row_keys, past, past, max, scale));
        for (int point = 0; point < grid_size; ++point) {
          const int64_t wanted = CoverageGridPoint(point) - 1;
          double share = 1.0;
          if (wanted == 0) share = 0.0;
          if (wanted > 0 && wanted < past) {
            share = TopMass(row_keys, past, static_cast<int>(wanted), max, scale) * inverse;
          }
          if (LaneId() == 0) own_sums[point] += share;
        }
      }
    }
    SyncThreads();
    if (LinearThread() < grid_size) {
      double sum = 0;
      for (int warp = 0; warp < kRouterWarps; ++warp) {
        sum += warp_sums[warp * kMostPoints + LinearThread()];
      }
      sums[unit * grid_size + LinearThread()] = sum;
    }
    SyncThreads();
  }
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kCurveThreads)
    CoverageCurves(DeviceBlocks blocks, int num_heads, int sample_stride, int grid_size,
                   DevicePtr<const double> sums, DevicePtr<double> curves) {
  const int64_t i = GlobalThread();
  if (i >= blocks.sequences * grid_size) return;
  const int64_t sequence = i / grid_size;
  const auto point = static_cast<int>(i % grid_size);
  const auto tokens =
      static_cast<int>(blocks.cu_seqlens[sequence + 1] - blocks.cu_seqlens[sequence]);
  const int64_t n = blocks.first_block[sequence + 1] - blocks.first_block[sequence];
  // A budget of all blocks covers everything, as does any where there is no past.
  if (CoverageGridPoint(point) >= n) {
    curves[i] = 1.0;
    return;
  }
  const int64_t slices = int64_t{num_heads} * kSlices;
  double sum = 0;
  for (int64_t slice = 0; slice < slices; ++slice) {
    sum += sums[(sequence * slices + slice) * grid_size + point];
  }
  const int64_t queries = SampledQueries(tokens, blocks.block_tokens, sample_stride);
  const double curve = sum / (static_cast<double>(queries) * num_heads);
  curves[i] = curve < 1.0 ? curve : 1.0;
}

RouterMemory CoverageMemory(const AttentionShape& shape, const DeviceBlocks& blocks,
                            int64_t shared_limit) {
  return PlanRouterMemory(kFewRows, shape.head_dim, blocks.most_blocks, shared_limit, kReserved);
}

int64_t Units(const AttentionShape& shape, const DeviceBlocks& blocks) {
  return blocks.sequences * shape.num_heads * kSlices;
}

// The sums come first in scratch, padded so that scores after them are aligned.
int64_t SumsBytes(const AttentionShape& shape, const DeviceBlocks& blocks) {
  const int64_t bytes = Units(shape, blocks) * CoverageGridSize(blocks.most_blocks) *
                        static_cast<int64_t>(sizeof(double));
  return (bytes + 15) / 16 * 16;
}

// A thread for each sequence.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kRouterThreads)
    RealizeBudgets(DeviceBlocks blocks, DevicePtr<const double> curves, int width,
                   DevicePtr<const int32_t> planned, DevicePtr<const int32_t> base,
                   double coverage_guard, DevicePtr<int32_t> realized) {
  const int64_t s = GlobalThread();
  if (s >= blocks.sequences) return;
  const int64_t own = blocks.first_block[s + 1] - blocks.first_block[s];
  realized[s] = RealizedBudget(own, curves + s * width, planned[s], base[s], coverage_guard);
}

}  // namespace

int64_t CoverageScratchBytes(const AttentionShape& shape, const DeviceBlocks& blocks,
                             int64_t shared_limit) {
  const RouterMemory memory = CoverageMemory(shape, blocks, shared_limit);
  return SumsBytes(shape, blocks) + (memory.scores_in_scratch
                                         ? kScratchWorkers * memory.rows * blocks.most_blocks *
                                               static_cast<int64_t>(sizeof(int32_t))
                                         : 0);
}

template <typename T>
absl::Status LaunchCoverageCurves(StreamHandle stream, const AttentionShape& shape,
                                  const DeviceBlocks& blocks, int64_t shared_limit,
                                  DevicePtr<const T> q, DevicePtr<const float> means,
                                  int sample_stride, DevicePtr<double> curves,
                                  DevicePtr<std::byte> scratch) {
  SB_RETURN_IF_ERROR(CheckRouterShape(shape));
  if (sample_stride < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample_stride is ", sample_stride, "; it must be at least 1"));
  }
  const RouterMemory memory = CoverageMemory(shape, blocks, shared_limit);
  const int grid_size = CoverageGridSize(blocks.most_blocks);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const DevicePtr<double> sums = PtrCast<double>(scratch);
  const DevicePtr<int32_t> scores = PtrCast<int32_t>(scratch + SumsBytes(shape, blocks));
  const int64_t most = memory.scores_in_scratch ? kScratchWorkers : 0x7FFFFFFF;
  SB_RETURN_IF_ERROR(
      Launch(memory.scores_in_scratch ? CoverageSums<T, true> : CoverageSums<T, false>,
             {.grid = {static_cast<unsigned>(std::min(Units(shape, blocks), most))},
              .block = {kRouterThreads},
              .dynamic_shared_bytes = memory.shared_bytes,
              .name = "coverage_sums"},
             stream, shape, blocks, q, means, sample_stride, scale, grid_size, sums, scores));
  const int64_t threads = blocks.sequences * grid_size;
  return Launch(CoverageCurves,
                {.grid = {static_cast<unsigned>((threads + kCurveThreads - 1) / kCurveThreads)},
                 .block = {kCurveThreads},
                 .name = "coverage_curves"},
                stream, blocks, shape.num_heads, sample_stride, grid_size, sums, curves);
}

template absl::Status LaunchCoverageCurves<float>(StreamHandle, const AttentionShape&,
                                                  const DeviceBlocks&, int64_t,
                                                  DevicePtr<const float>, DevicePtr<const float>,
                                                  int, DevicePtr<double>, DevicePtr<std::byte>);
template absl::Status LaunchCoverageCurves<Bf16>(StreamHandle, const AttentionShape&,
                                                 const DeviceBlocks&, int64_t,
                                                 DevicePtr<const Bf16>, DevicePtr<const float>, int,
                                                 DevicePtr<double>, DevicePtr<std::byte>);

absl::Status LaunchRealizedBudgets(StreamHandle stream, const DeviceBlocks& blocks,
                                   DevicePtr<const double> curves, DevicePtr<const int32_t> planned,
                                   DevicePtr<const int32_t> base, double coverage_guard,
                                   DevicePtr<int32_t> realized) {
  const auto grid = static_cast<unsigned>((blocks.sequences + kRouterThreads - 1) / kRouterThreads);
  return Launch(RealizeBudgets,
                {.grid = {grid}, .block = {kRouterThreads}, .name = "realized budgets"}, stream,
                blocks, curves, CoverageGridSize(blocks.most_blocks), planned, base, coverage_guard,
                realized);
}

}  // namespace sparsebalance::kernels::cuda
