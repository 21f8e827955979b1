#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/dense/embedding.h"
#include "kernels/cuda/dense/rows.h"
#include "kernels/cuda/dense/vector.h"
#include "kernels/cuda/device/device.h"
#include "kernels/status_macros.h"

// The gradient needs every id's tokens in ascending order. They are counted by id, the counts are
// turned into places of lists by a scan, and the lists are filled; up to here integer atomics
// suffice, whose results do not depend on the order but for the order within a list. Then each
// token finds its rank by counting the smaller ones in its list. This takes the square of the
// repeats of one id, in reads that a whole warp shares; a sort would take several passes over
// all tokens, and one warp a row that scans all ids would take tokens * rows.

namespace sparsebalance::kernels::cuda {
namespace {

SB_DEVICE inline bool IsGood(int32_t id, int64_t table_rows) { return id >= 0 && id < table_rows; }

template <typename T, typename W, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    EmbeddingForward(int64_t tokens, int64_t columns, int64_t table_rows,
                     DevicePtr<const int32_t> ids, DevicePtr<const W> table, DevicePtr<T> out,
                     DevicePtr<int32_t> bad_ids) {
  for (int64_t t = FirstRow(); t < tokens; t += RowStep()) {
    const int32_t id = ids[t];
    const bool good = IsGood(id, table_rows);
    if (!good && bad_ids != nullptr && LaneId() == 0) AtomicAdd(bad_ids, 1);
    for (int64_t c = N * LaneId(); c < columns; c += 32 * N) {
      float values[N] = {};
      if (good) LoadFloats<N>(table + id * columns + c, values);
      StoreFloats<N>(out + t * columns + c, values);
    }
  }
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads) ClearCounts(int64_t rows, DevicePtr<int32_t> counts) {
  for (int64_t i = GlobalThread(); i < rows; i += ThreadStep()) counts[i] = 0;
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    CountIds(int64_t tokens, int64_t table_rows, DevicePtr<const int32_t> ids,
             DevicePtr<int32_t> counts, DevicePtr<int32_t> bad_ids) {
  for (int64_t t = GlobalThread(); t < tokens; t += ThreadStep()) {
    if (IsGood(ids[t], table_rows)) {
      AtomicAdd(counts + ids[t], 1);
    } else if (bad_ids != nullptr) {
      AtomicAdd(bad_ids, 1);
    }
  }
}

constexpr int kScanThreads = 1024;
constexpr int kScanItems = 8;  // of a thread, in a step

// counts[i] becomes the sum of those before it. One block: even 200000 rows are 25 steps.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kScanThreads) ScanCounts(int64_t rows, DevicePtr<int32_t> counts) {
  SB_SHARED_ARRAY(int32_t, warp_sums, kScanThreads / 32);
  int32_t before = 0;  // this step
  for (int64_t begin = 0; begin < rows; begin += kScanThreads * kScanItems) {
    const int64_t own = begin + int64_t{kScanItems} * LinearThread();
    int32_t items[kScanItems];
    int32_t sum = 0;
    SB_UNROLL
    for (int i = 0; i < kScanItems; ++i) {
      items[i] = own + i < rows ? counts[own + i] : 0;
      sum += items[i];
    }
    int32_t up_to = sum;  // and with this thread, within the warp
    SB_UNROLL
    for (int delta = 1; delta < 32; delta *= 2) {
      const int32_t below = ShflUp(kAllLanes, up_to, delta);
      if (LaneId() >= delta) up_to += below;
    }
    if (LaneId() == 31) warp_sums[WarpId()] = up_to;
    SyncThreads();
    int32_t place = before + up_to - sum;
    for (int warp = 0; warp < kScanThreads / 32; ++warp) {
      const int32_t warp_sum = warp_sums[warp];
      if (warp < WarpId()) place += warp_sum;
      before += warp_sum;
    }
    SyncThreads();
    SB_UNROLL
    for (int i = 0; i < kScanItems; ++i) {
      if (own + i < rows) counts[own + i] = place;
      place += items[i];
    }
  }
}

// Moves every place to the end of its list, which is the begin of the next one.
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    FillLists(int64_t tokens, int64_t table_rows, DevicePtr<const int32_t> ids,
              DevicePtr<int32_t> places, DevicePtr<int32_t> lists) {
  for (int64_t t = GlobalThread(); t < tokens; t += ThreadStep()) {
    if (IsGood(ids[t], table_rows)) {
      lists[AtomicAdd(places + ids[t], 1)] = static_cast<int32_t>(t);
    }
  }
}

SB_DEVICE inline int32_t ListBegin(DevicePtr<const int32_t> ends, int64_t id) {
  return id == 0 ? 0 : ends[id - 1];
}

SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    OrderLists(int64_t tokens, int64_t table_rows, DevicePtr<const int32_t> ids,
               DevicePtr<const int32_t> ends, DevicePtr<const int32_t> lists,
               DevicePtr<int32_t> ordered) {
  const int64_t filled = ends[table_rows - 1];
  // Threads take entries rather than tokens, so that those of a warp often read the same list.
  for (int64_t entry = GlobalThread(); entry < filled; entry += ThreadStep()) {
    const int32_t token = lists[entry];
    const int32_t begin = ListBegin(ends, ids[token]);
    const int32_t end = ends[ids[token]];
    int32_t rank = 0;
    for (int32_t i = begin; i < end; ++i) rank += lists[i] < token ? 1 : 0;
    ordered[begin + rank] = token;
  }
}

template <typename T, int N>
SB_GLOBAL void SB_LAUNCH_BOUNDS(kThreads)
    AddLists(int64_t columns, int64_t table_rows, DevicePtr<const int32_t> ends,
             DevicePtr<const int32_t> ordered, DevicePtr<const T> out_grad,
             DevicePtr<float> table_grad) {
  for (int64_t id = FirstRow(); id < table_rows; id += RowStep()) {
    const int32_t begin = ListBegin(ends, id);
    const int32_t end = ends[id];
    if (begin == end) continue;
    for (int64_t c = (int64_t{BlockIdx().y} * 32 + LaneId()) * N; c < columns;
         c += int64_t{GridDim().y} * 32 * N) {
      float sums[N];
      LoadFloats<N>(table_grad + id * columns + c, sums);
      for (int32_t i = begin; i < end; ++i) {
        float values[N];
        LoadFloats<N>(out_grad + ordered[i] * columns + c, values);
        SB_UNROLL
        for (int j = 0; j < N; ++j) sums[j] += values[j];
      }
      StoreFloats<N>(table_grad + id * columns + c, sums);
    }
  }
}

// Blocks side by side over the columns of the same rows.
constexpr int64_t kMostColumnBlocks = 64;

}  // namespace

template <typename T, typename W>
absl::Status LaunchEmbeddingForward(StreamHandle stream, const EmbeddingShape& shape,
                                    DevicePtr<const int32_t> ids, DevicePtr<const W> table,
                                    DevicePtr<T> out, DevicePtr<int32_t> bad_ids) {
  if (shape.tokens == 0) return absl::OkStatus();
  const bool wide = RowsFit(kVector<T>, shape.columns, table, out);
  return Launch(wide ? EmbeddingForward<T, W, kVector<T>> : EmbeddingForward<T, W, 1>,
                RowsConfig("embedding_forward", shape.tokens), stream, shape.tokens, shape.columns,
                shape.table_rows, ids, table, out, bad_ids);
}

int64_t EmbeddingBackwardScratch(const EmbeddingShape& shape) {
  return (shape.table_rows + 2 * shape.tokens) * static_cast<int64_t>(sizeof(int32_t));
}

template <typename T>
absl::Status LaunchEmbeddingBackward(StreamHandle stream, const EmbeddingShape& shape,
                                     DevicePtr<const int32_t> ids, DevicePtr<const T> out_grad,
                                     DevicePtr<float> table_grad, DevicePtr<int32_t> bad_ids,
                                     DevicePtr<int32_t> scratch) {
  const int64_t tokens = shape.tokens;
  const int64_t rows = shape.table_rows;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (tokens > kMost || rows > kMost || rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("EmbeddingBackward: ", tokens, " tokens and ",
                                                   rows, " rows, must be below 2^31"));
  }
  if (tokens == 0) return absl::OkStatus();
  const DevicePtr<int32_t> ends = scratch;
  const DevicePtr<int32_t> lists = scratch + rows;
  const DevicePtr<int32_t> ordered = lists + tokens;
  const auto over = [](const char* name, int64_t work) -> LaunchConfig {
    return {.grid = {BlocksFor(work, kThreads)}, .block = {kThreads}, .name = name};
  };
  SB_RETURN_IF_ERROR(Launch(ClearCounts, over("clear_counts", rows), stream, rows, ends));
  SB_RETURN_IF_ERROR(
      Launch(CountIds, over("count_ids", tokens), stream, tokens, rows, ids, ends, bad_ids));
  SB_RETURN_IF_ERROR(
      Launch(ScanCounts, {.block = {kScanThreads}, .name = "scan_counts"}, stream, rows, ends));
  SB_RETURN_IF_ERROR(
      Launch(FillLists, over("fill_lists", tokens), stream, tokens, rows, ids, ends, lists));
  SB_RETURN_IF_ERROR(Launch(OrderLists, over("order_lists", tokens), stream, tokens, rows, ids,
                            ends, lists, ordered));
  const bool wide = RowsFit(kVector<T>, shape.columns, out_grad, table_grad);
  const int64_t width = 32 * (wide ? kVector<T> : 1);
  LaunchConfig config = RowsConfig("add_lists", rows);
  config.grid.y =
      static_cast<unsigned>(std::min((shape.columns + width - 1) / width, kMostColumnBlocks));
  return Launch(wide ? AddLists<T, kVector<T>> : AddLists<T, 1>, config, stream, shape.columns,
                rows, ends, ordered, out_grad, table_grad);
}

#define SB_INSTANTIATE(T, W)                                                                       \
  template absl::Status LaunchEmbeddingForward<T, W>(StreamHandle, const EmbeddingShape&,          \
                                                     DevicePtr<const int32_t>, DevicePtr<const W>, \
                                                     DevicePtr<T>, DevicePtr<int32_t>)
SB_INSTANTIATE(float, float);
SB_INSTANTIATE(Bf16, float);
SB_INSTANTIATE(Bf16, Bf16);
#undef SB_INSTANTIATE
#define SB_INSTANTIATE(T)                                                                \
  template absl::Status LaunchEmbeddingBackward<T>(                                      \
      StreamHandle, const EmbeddingShape&, DevicePtr<const int32_t>, DevicePtr<const T>, \
      DevicePtr<float>, DevicePtr<int32_t>, DevicePtr<int32_t>)
SB_INSTANTIATE(float);
SB_INSTANTIATE(Bf16);
#undef SB_INSTANTIATE

}  // namespace sparsebalance::kernels::cuda
