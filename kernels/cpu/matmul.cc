#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/parallel.h"
#include "kernels/op_checks.h"

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kTileRows = 512;      // a weight is re-packed once a tile: keep it small beside
constexpr int64_t kTileColumns = 1024;  // the product itself
constexpr int64_t kMinDepthPiece = 1024;
constexpr int64_t kMaxSegment = 2048;
constexpr int64_t kWantedPieces = 16;  // enough for the cores of one rank
constexpr size_t kMaxPrimitives = 512;
constexpr size_t kScratchAlignment = 64;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Segment {
  int64_t begin, count;
};

// Cuts [begin, end) into pieces of `unit`; the rest into one piece, or where `by_powers` into
// powers of 2. The number of tokens differs from one micro-batch to the next, and a primitive costs
// about a millisecond to make: cut by powers, all numbers of tokens share a few primitives.
std::vector<Segment> Cut(int64_t begin, int64_t end, int64_t unit, bool by_powers) {
  std::vector<Segment> out;
  while (begin < end) {
    int64_t count = std::min(unit, end - begin);
    if (by_powers && count < unit) {
      count = 1;
      while (count * 2 <= end - begin) count *= 2;
    }
    out.push_back({begin, count});
    begin += count;
  }
  return out;
}

// Length of the parts of the summed dimension that are summed apart.
int64_t PieceDepth(const MatmulShape& shape) {
  const int64_t tiles = CeilDiv(shape.m, kTileRows) * CeilDiv(shape.n, kTileColumns);
  const int64_t pieces = std::max<int64_t>(
      1, std::min(CeilDiv(kWantedPieces, std::max<int64_t>(tiles, 1)), shape.k / kMinDepthPiece));
  // A multiple of a power of 2, so that all parts but the last are cut alike.
  return pieces == 1 ? shape.k : CeilDiv(CeilDiv(shape.k, pieces), 512) * 512;
}

// Elements from one row to the next, of each matrix as it lies in memory.
struct MatmulStrides {
  int64_t a, b, c;
};

MatmulStrides StridesOf(const MatmulShape& shape) {
  const MatmulShape s = op_checks::WithStrides(shape);
  return {.a = s.a_stride, .b = s.b_stride, .c = s.c_stride};
}

// m, n, k, row strides of a, b (negative where transposed) and c; then whether to add to c and to
// add a bias.
using Key = std::array<int64_t, 8>;

Key MakeKey(const MatmulShape& shape, const MatmulStrides& strides, int64_t m, int64_t n, int64_t k,
            bool accumulate, bool bias) {
  return {m,
          n,
          k,
          shape.transpose_a ? -strides.a : strides.a,
          shape.transpose_b ? -strides.b : strides.b,
          strides.c,
          accumulate ? 1 : 0,
          bias ? 1 : 0};
}

dnnl::memory::dims Strides(int64_t leading) {
  return leading < 0 ? dnnl::memory::dims{1, -leading} : dnnl::memory::dims{leading, 1};
}

struct Primitive {
  dnnl::memory::desc a, b, c, bias, scratch;
  dnnl::matmul matmul;
};

Primitive MakePrimitive(const dnnl::engine& engine, const Key& key) {
  const auto [m, n, k, a_leading, b_leading, c_leading, accumulate, with_bias] = key;
  constexpr auto kF32 = dnnl::memory::data_type::f32;
  Primitive out;
  out.a = dnnl::memory::desc({m, k}, kF32, Strides(a_leading));
  out.b = dnnl::memory::desc({k, n}, kF32, Strides(b_leading));
  out.c = dnnl::memory::desc({m, n}, kF32, Strides(c_leading));
  dnnl::primitive_attr attr;
  // oneDNN's own temporary memory belongs to the thread that made the primitive: pieces that run at
  // the same time would share it.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate != 0) {
    dnnl::post_ops ops;
    ops.append_sum(1.0F);
    attr.set_post_ops(ops);
  }
  if (with_bias != 0) out.bias = dnnl::memory::desc({1, n}, kF32, Strides(n));
  const dnnl::matmul::desc op = with_bias != 0 ? dnnl::matmul::desc(out.a, out.b, out.bias, out.c)
                                               : dnnl::matmul::desc(out.a, out.b, out.c);
  const dnnl::matmul::primitive_desc description(op, attr, engine);
  out.scratch = description.scratchpad_desc();
  out.matmul = dnnl::matmul(description);
  return out;
}

}  // namespace

struct MatmulEngine::Impl {
  explicit Impl(int thread_count)
      : threads(thread_count), engine(dnnl::engine::kind::cpu, 0), scratch(thread_count) {}

  // Called between parallel sections only, so no lock is needed; pointers stay valid until the
  // next call of BeginRun.
  const Primitive& Get(const Key& key) {
    auto it = primitives.find(key);
    if (it == primitives.end()) {
      it = primitives.emplace(key, Entry{MakePrimitive(engine, key), 0}).first;
    }
    it->second.last_use = ++clock;
    return it->second.primitive;
  }

  void BeginRun() {
    if (primitives.size() < kMaxPrimitives) return;
    std::vector<std::pair<uint64_t, Key>> by_age;
    by_age.reserve(primitives.size());
    for (const auto& [key, entry] : primitives) by_age.emplace_back(entry.last_use, key);
    std::sort(by_age.begin(), by_age.end());
    for (size_t i = 0; i < by_age.size() / 2; ++i) primitives.erase(by_age[i].second);
  }

  // By the calling thread; `bias` is used where the primitive has one. Throws what oneDNN throws.
  void Execute(const Primitive& p, const float* a, const float* b, const float* bias, float* c) {
    // oneDNN takes inputs as void*; it does not write to them.
    std::unordered_map<int, dnnl::memory> args = {
        {DNNL_ARG_SRC, dnnl::memory(p.a, engine, const_cast<float*>(a))},
        {DNNL_ARG_WEIGHTS, dnnl::memory(p.b, engine, const_cast<float*>(b))},
        {DNNL_ARG_DST, dnnl::memory(p.c, engine, c)}};
    if (!p.bias.is_zero()) {
      args.emplace(DNNL_ARG_BIAS, dnnl::memory(p.bias, engine, const_cast<float*>(bias)));
    }
    if (!p.scratch.is_zero()) {
      std::vector<char>& own = scratch[ThreadIndex()];
      const size_t size = p.scratch.get_size();
      if (own.size() < size + kScratchAlignment) own.resize(size + kScratchAlignment);
      void* aligned = own.data();
      size_t space = own.size();
      std::align(kScratchAlignment, size, aligned, space);
      args.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(p.scratch, engine, aligned));
    }
    dnnl::stream stream(engine);
    p.matmul.execute(stream, args);
    stream.wait();
  }

  struct Entry {
    Primitive primitive;
    uint64_t last_use;
  };
  int threads;
  dnnl::engine engine;
  std::unordered_map<Key, Entry, absl::Hash<Key>> primitives;
  uint64_t clock = 0;
  std::vector<std::vector<char>> scratch;  // by thread
};

MatmulEngine::MatmulEngine(int threads) : impl_(std::make_unique<Impl>(threads)) {}
MatmulEngine::~MatmulEngine() = default;

int64_t MatmulEngine::DepthPieces(const MatmulShape& shape) {
  return CeilDiv(shape.k, PieceDepth(shape));
}

absl::Status MatmulEngine::Run(const MatmulShape& shape, const float* a, const float* b,
                               const float* bias, float* c, float* partials) {
  // One unit is a tile of c, or of the partial sum of one depth piece, made by one thread.
  struct Step {
    Segment depth;
    const Primitive* primitive;
  };
  struct Unit {
    Segment rows, columns;
    std::vector<Step> steps;
    float* out;
  };
  // Tokens are the rows of a layer's output and input gradient, and the depth of a weight gradient.
  const bool tokens_are_depth = shape.transpose_a;
  const MatmulStrides strides = StridesOf(shape);
  const int64_t pieces = DepthPieces(shape);
  const int64_t depth = PieceDepth(shape);
  std::vector<Unit> work;
  OneThreadScope one_thread;
  try {
    impl_->BeginRun();
    for (int64_t p = 0; p < pieces; ++p) {
      const std::vector<Segment> segments =
          Cut(p * depth, std::min((p + 1) * depth, shape.k),
              tokens_are_depth ? kMaxSegment : shape.k, tokens_are_depth);
      float* out = p == 0 ? c : partials + (p - 1) * shape.m * shape.n;
      const MatmulStrides here = {strides.a, strides.b, p == 0 ? strides.c : shape.n};
      for (const Segment& rows : Cut(0, shape.m, kTileRows, !tokens_are_depth)) {
        for (const Segment& columns : Cut(0, shape.n, kTileColumns, false)) {
          Unit unit{rows, columns, {}, out + rows.begin * here.c + columns.begin};
          for (const Segment& segment : segments) {
            const bool first = segment.begin == p * depth;
            const Key key =
                MakeKey(shape, here, rows.count, columns.count, segment.count,
                        !first || (p == 0 && shape.accumulate), first && p == 0 && bias != nullptr);
            unit.steps.push_back({segment, &impl_->Get(key)});
          }
          work.push_back(std::move(unit));
        }
      }
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("oneDNN refused a matmul of m=", shape.m,
                                            " n=", shape.n, " k=", shape.k, ": ", e.what()));
  }

  std::mutex mutex;
  std::string error;
  ParallelFor(impl_->threads, static_cast<int64_t>(work.size()), [&](int64_t i) {
    const Unit& unit = work[i];
    const int64_t m0 = unit.rows.begin;
    const int64_t n0 = unit.columns.begin;
    try {
      for (const Step& step : unit.steps) {
        const int64_t k0 = step.depth.begin;
        impl_->Execute(*step.primitive,
                       a + (shape.transpose_a ? k0 * strides.a + m0 : m0 * strides.a + k0),
                       b + (shape.transpose_b ? n0 * strides.b + k0 : k0 * strides.b + n0),
                       bias == nullptr ? nullptr : bias + n0, unit.out);
      }
    } catch (const std::exception& e) {
      const std::lock_guard<std::mutex> lock(mutex);
      error = e.what();
    }
  });
  if (!error.empty()) {
    return absl::InternalError(absl::StrCat("oneDNN failed in a matmul of m=", shape.m,
                                            " n=", shape.n, " k=", shape.k, ": ", error));
  }

  if (pieces > 1) {
    const int64_t rows = std::max<int64_t>(1, 16384 / shape.n);
    ParallelRanges(impl_->threads, shape.m, rows, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p + 1 < pieces; ++p) {
        for (int64_t r = begin; r < end; ++r) {
          const float* partial = partials + (p * shape.m + r) * shape.n;
          float* out = c + r * strides.c;
          for (int64_t i = 0; i < shape.n; ++i) out[i] += partial[i];
        }
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cpu
