#include "kernels/cuda/device/device.h"
#include "kernels/emulation/sample_kernels.h"

namespace sparsebalance::kernels::cuda {
namespace {

SB_GLOBAL void BlockSums(DevicePtr<const float> x, int64_t n, DevicePtr<float> sums) {
  const SharedPtr<float> partial = DynamicShared<float>();
  const int thread = LinearThread();
  const int64_t i = GlobalThread();
  partial[thread] = i < n ? x[i] : 0.0F;
  for (int half = static_cast<int>(BlockDim().x) / 2; half > 0; half /= 2) {
    SyncThreads();
    if (thread < half) partial[thread] += partial[thread + half];
  }
  if (thread == 0) sums[BlockIdx().x] = partial[0];
}

SB_GLOBAL void WarpScan(DevicePtr<const int32_t> x, int64_t n, DevicePtr<int32_t> y) {
  const int64_t i = GlobalThread();
  int32_t sum = i < n ? x[i] : 0;
  SB_UNROLL
  for (int delta = 1; delta < 32; delta *= 2) {
    const int32_t below = ShflUp(kAllLanes, sum, delta);
    if (LaneId() >= delta) sum += below;
  }
  if (i < n) y[i] = sum;
}

constexpr int kBins = 64;

SB_GLOBAL void Histogram(DevicePtr<const int32_t> x, int64_t n, DevicePtr<int32_t> counts,
                         DevicePtr<float> total, DevicePtr<int32_t> largest) {
  SB_SHARED_ARRAY(int32_t, bins, kBins);
  const int thread = LinearThread();
  if (thread < kBins) bins[thread] = 0;
  SyncThreads();
  const int64_t i = GlobalThread();
  if (i < n) {
    AtomicAdd(bins + x[i], 1);
    AtomicAdd(total, static_cast<float>(x[i]));
    AtomicMax(largest, x[i]);
  }
  SyncThreads();
  if (thread < kBins) AtomicAdd(counts + thread, bins[thread]);
}

constexpr int kCopyThreads = 64;
constexpr int kStep = 4 * kCopyThreads;  // floats

SB_GLOBAL void BufferedDouble(DevicePtr<const float> from, int64_t n, DevicePtr<float> to) {
  SB_SHARED_ARRAY(float, buffers, 2 * kStep);
  const int own = 4 * LinearThread();
  const auto fetch = [&](int64_t begin, int buffer) {
    const int64_t left = n - begin - own;
    const int bytes = left >= 4 ? 16 : left > 0 ? static_cast<int>(left) * 4 : 0;
    CpAsync<16>(buffers + buffer * kStep + own, bytes > 0 ? from + begin + own : from, bytes);
    CpAsyncCommit();
  };
  fetch(0, 0);
  int buffer = 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    fetch(begin + kStep, 1 - buffer);  // Beyond the end this is a group that copies nothing.
    CpAsyncWait<1>();
    SyncThreads();
    // Elements of other threads, so that the barriers matter.
    for (int i = 0; i < 4; ++i) {
      const int element = i * kCopyThreads + LinearThread();
      if (begin + element < n) to[begin + element] = 2.0F * buffers[buffer * kStep + element];
    }
    SyncThreads();
    buffer = 1 - buffer;
  }
}

constexpr int kTile = 64;       // rows and columns of c that a block computes
constexpr int kTileDepth = 32;  // of a step
constexpr int kProductThreads = 128;
// Rows in shared memory are 16 bytes longer than they need to be, so that the rows that ldmatrix
// reads at once lie in different banks.
constexpr int kRowA = kTileDepth + 8;
constexpr int kRowBTransposed = kTileDepth + 8;
constexpr int kRowB = kTile + 8;
constexpr int kStageA = kTile * kRowA;
constexpr int kStageB = kTile * kRowBTransposed;
static_assert(kStageB >= kTileDepth * kRowB);

template <bool kTransposedB>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kProductThreads)
    TileProduct(DevicePtr<const Bf16> a, DevicePtr<const Bf16> b, int64_t n, int64_t k,
                DevicePtr<float> c) {
  SB_SHARED_ARRAY(Bf16, a_tiles, 2 * kStageA);
  SB_SHARED_ARRAY(Bf16, b_tiles, 2 * kStageB);
  const int64_t first_row = int64_t{BlockIdx().y} * kTile;
  const int64_t first_column = int64_t{BlockIdx().x} * kTile;
  const int lane = LaneId();
  // Each of the 4 warps computes a quarter of the tile.
  const int warp_row = WarpId() / 2 * 32;
  const int warp_column = WarpId() % 2 * 32;

  const auto fetch = [&](int64_t depth, int stage) {
    if (depth < k) {
      for (int i = LinearThread(); i < kTile * kTileDepth / 8; i += kProductThreads) {
        const int row = i / (kTileDepth / 8);
        const int column = i % (kTileDepth / 8) * 8;
        CpAsync<16>(a_tiles + stage * kStageA + row * kRowA + column,
                    a + (first_row + row) * k + depth + column);
        if constexpr (kTransposedB) {
          CpAsync<16>(b_tiles + stage * kStageB + row * kRowBTransposed + column,
                      b + (first_column + row) * k + depth + column);
        } else {
          const int b_row = i / (kTile / 8);
          const int b_column = i % (kTile / 8) * 8;
          CpAsync<16>(b_tiles + stage * kStageB + b_row * kRowB + b_column,
                      b + (depth + b_row) * n + first_column + b_column);
        }
      }
    }
    CpAsyncCommit();
  };

  float sums[2][4][4] = {};
  fetch(0, 0);
  int stage = 0;
  for (int64_t depth = 0; depth < k; depth += kTileDepth) {
    fetch(depth + kTileDepth, 1 - stage);
    CpAsyncWait<1>();
    SyncThreads();
    const SharedPtr<const Bf16> a_tile = a_tiles + stage * kStageA;
    const SharedPtr<const Bf16> b_tile = b_tiles + stage * kStageB;
    SB_UNROLL
    for (int step = 0; step < kTileDepth; step += 16) {
      uint32_t a_parts[2][4];
      SB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LdMatrixX4(a_parts[i],
                   a_tile + (warp_row + 16 * i + lane % 16) * kRowA + step + lane / 16 * 8);
      }
      SB_UNROLL
      for (int j = 0; j < 2; ++j) {
        uint32_t b_parts[4];
        const int column = warp_column + 16 * j;
        if constexpr (kTransposedB) {
          LdMatrixX4(b_parts, b_tile + (column + lane / 16 * 8 + lane % 8) * kRowBTransposed +
                                  step + lane / 8 % 2 * 8);
        } else {
          LdMatrixX4Trans(b_parts, b_tile + (step + lane % 16) * kRowB + column + lane / 16 * 8);
        }
        const uint32_t left[2] = {b_parts[0], b_parts[1]};
        const uint32_t right[2] = {b_parts[2], b_parts[3]};
        SB_UNROLL
        for (int i = 0; i < 2; ++i) {
          MmaM16N8K16(sums[i][2 * j], a_parts[i], left, sums[i][2 * j]);
          MmaM16N8K16(sums[i][2 * j + 1], a_parts[i], right, sums[i][2 * j + 1]);
        }
      }
    }
    SyncThreads();
    stage = 1 - stage;
  }
  SB_UNROLL
  for (int i = 0; i < 2; ++i) {
    SB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const DevicePtr<float> out = c + (first_row + warp_row + 16 * i + lane / 4) * n +
                                   first_column + warp_column + 8 * j + lane % 4 * 2;
      StoreVec(out, float2{sums[i][j][0], sums[i][j][1]});
      StoreVec(out + 8 * n, float2{sums[i][j][2], sums[i][j][3]});
    }
  }
}

template <bool kTransposedA, bool kTransposedB>
SB_GLOBAL void FragmentProduct(DevicePtr<const Bf16> a, DevicePtr<const Bf16> b,
                               DevicePtr<float> c) {
  SB_SHARED_ARRAY(Bf16, a_tile, 16 * 16);
  SB_SHARED_ARRAY(Bf16, b_tile, 16 * 8);
  const int lane = LaneId();
  StoreVec(a_tile + 8 * lane, LoadVec<uint4>(a + 8 * lane));
  StoreVec(b_tile + 4 * lane, LoadVec<uint2>(b + 4 * lane));
  SyncWarp();
  uint32_t a_parts[4];
  uint32_t b_parts[2];
  if constexpr (kTransposedA) {
    // Rows are columns of a: the second matrix is the lower left one of a, and to the right here.
    LdMatrixX4Trans(a_parts, a_tile + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
  } else {
    LdMatrixX4(a_parts, a_tile + lane % 16 * 16 + lane / 16 * 8);
  }
  if constexpr (kTransposedB) {
    LdMatrixX2(b_parts, b_tile + lane % 8 * 16 + lane / 8 % 2 * 8);
  } else {
    LdMatrixX2Trans(b_parts, b_tile + lane % 16 * 8);
  }
  const DevicePtr<float> upper = c + lane / 4 * 8 + lane % 4 * 2;
  const DevicePtr<float> lower = upper + 64;
  const float before[4] = {upper[0], upper[1], lower[0], lower[1]};
  float after[4];
  MmaM16N8K16(after, a_parts, b_parts, before);
  StoreVec(upper, float2{after[0], after[1]});
  StoreVec(lower, float2{after[2], after[3]});
}

SB_GLOBAL void Miscellany(DevicePtr<float> x, DevicePtr<uint32_t> scratch) {
  SB_SHARED_ARRAY(float, copies, 64);
  SB_SHARED_ARRAY(Bf16, matrix, 64);
  const int thread = LinearThread();
  const int lane = LaneId();
  bool right = true;
  // The argument is computed in any case: a skipped shuffle would leave the other lanes waiting.
  const auto expect = [&right](bool holds) { right = right && holds; };

  // Copies of 8 and 4 bytes and of nothing, a whole vector through PtrCast.
  if (thread < 16) CpAsync<8>(copies + 2 * thread, x + 2 * thread);
  if (thread >= 32) CpAsync<4>(copies + thread, x + thread, thread < 48 ? 4 : 0);
  CpAsyncWaitAll();
  SyncThreads();
  expect(copies[thread] == (thread < 48 ? 1.0F : 0.0F));
  if (thread < 16) {
    const float4 four = *PtrCast<const float4>(x + 4 * thread);
    expect(four.x + four.y + four.z + four.w == 4.0F);
  }

  // One matrix; element (row, column) is 8 row + column.
  matrix[thread] = Bf16(static_cast<float>(thread));
  SyncThreads();
  uint32_t straight[1];
  uint32_t turned[1];
  LdMatrixX1(straight, matrix + lane % 8 * 8);
  LdMatrixX1Trans(turned, matrix + lane % 8 * 8);
  const int row = lane / 4;
  const int column = lane % 4 * 2;
  const auto element = [](int i, int j) { return static_cast<float>(8 * i + j); };
  expect(straight[0] == PackBf16(element(row, column), element(row, column + 1)));
  expect(turned[0] == PackBf16(element(column, row), element(column + 1, row)));

  // Shuffles and votes.
  expect(Shfl(kAllLanes, lane, 5) == 5);
  expect(Shfl(kAllLanes, lane, 1, 8) == lane / 8 * 8 + 1);
  expect(ShflXor(kAllLanes, int64_t{lane}, 3) == (lane ^ 3));
  const double below = ShflDown(kAllLanes, static_cast<double>(lane), 4, 16);
  expect(below == (lane % 16 < 12 ? lane + 4 : lane));
  expect(Ballot(kAllLanes, lane % 2 == 0) == 0x55555555U);
  expect(Any(kAllLanes, lane == 7));
  expect(!All(kAllLanes, lane == 7));

  // scratch: [0] counts warps, [1] and [2] collect bits, [3] is a lock, [4] a number under the
  // lock, [5] the lowest thread, [6] and [7] a number of 64 bits.
  AtomicOr(scratch + 1, 1U << lane);
  AtomicAnd(scratch + 2, ~(1U << lane));
  AtomicMin(scratch + 5, static_cast<uint32_t>(thread));
  if (lane == 0) {
    while (AtomicCompareExchange(scratch + 3, 0U, 1U) != 0U) {
    }
    ThreadFence();
    scratch[4] = AtomicLoad(scratch + 4) + 1U;
    ThreadFence();
    AtomicExchange(scratch + 3, 0U);
    AtomicAdd(scratch, 1U);
    while (AtomicLoad(scratch) != BlockDim().x / 32) {
    }
    AtomicAdd(PtrCast<uint64_t>(scratch + 6), uint64_t{1} << 32);
  }
  SyncThreads();
  expect(scratch[1] == 0xFFFFFFFFU && scratch[2] == 0 && scratch[4] == 2 && scratch[5] == 0 &&
         scratch[6] == 0 && scratch[7] == 2);
  x[thread] += right ? 2.0F : -1.0F;
}

}  // namespace

absl::Status LaunchBlockSums(StreamHandle stream, DevicePtr<const float> x, int64_t n, int threads,
                             DevicePtr<float> sums) {
  return Launch(BlockSums,
                {.grid = {static_cast<unsigned>((n + threads - 1) / threads)},
                 .block = {static_cast<unsigned>(threads)},
                 .dynamic_shared_bytes = static_cast<int64_t>(sizeof(float)) * threads,
                 .name = "block_sums"},
                stream, x, n, sums);
}

absl::Status LaunchWarpScan(StreamHandle stream, DevicePtr<const int32_t> x, int64_t n,
                            DevicePtr<int32_t> y) {
  return Launch(
      WarpScan,
      {.grid = {static_cast<unsigned>((n + 127) / 128)}, .block = {128}, .name = "warp_scan"},
      stream, x, n, y);
}

absl::Status LaunchHistogram(StreamHandle stream, DevicePtr<const int32_t> x, int64_t n,
                             DevicePtr<int32_t> counts, DevicePtr<float> total,
                             DevicePtr<int32_t> largest) {
  return Launch(
      Histogram,
      {.grid = {static_cast<unsigned>((n + 127) / 128)}, .block = {128}, .name = "histogram"},
      stream, x, n, counts, total, largest);
}

absl::Status LaunchBufferedDouble(StreamHandle stream, DevicePtr<const float> from, int64_t n,
                                  DevicePtr<float> to) {
  return Launch(BufferedDouble, {.block = {kCopyThreads}, .name = "buffered_double"}, stream, from,
                n, to);
}

absl::Status LaunchTileProduct(StreamHandle stream, DevicePtr<const Bf16> a,
                               DevicePtr<const Bf16> b, bool transposed_b, int64_t m, int64_t n,
                               int64_t k, DevicePtr<float> c) {
  if (m % kTile != 0 || n % kTile != 0 || k % kTileDepth != 0) {
    return absl::InvalidArgumentError("sizes are no multiples of the tile's");
  }
  const LaunchConfig config{
      .grid = {static_cast<unsigned>(n / kTile), static_cast<unsigned>(m / kTile)},
      .block = {kProductThreads},
      .name = "tile_product"};
  return Launch(transposed_b ? TileProduct<true> : TileProduct<false>, config, stream, a, b, n, k,
                c);
}

absl::Status LaunchFragmentProduct(StreamHandle stream, DevicePtr<const Bf16> a, bool transposed_a,
                                   DevicePtr<const Bf16> b, bool transposed_b, DevicePtr<float> c) {
  const LaunchConfig config{.block = {32}, .name = "fragment_product"};
  if (transposed_a) {
    return Launch(transposed_b ? FragmentProduct<true, true> : FragmentProduct<true, false>, config,
                  stream, a, b, c);
  }
  return Launch(transposed_b ? FragmentProduct<false, true> : FragmentProduct<false, false>, config,
                stream, a, b, c);
}

absl::Status LaunchMiscellany(StreamHandle stream, DevicePtr<float> x,
                              DevicePtr<uint32_t> scratch) {
  return Launch(Miscellany, {.block = {64}, .name = "miscellany"}, stream, x, scratch);
}

}  // namespace sparsebalance::kernels::cuda
