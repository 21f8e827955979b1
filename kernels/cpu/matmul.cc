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

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kTileRows = 512;      // a weight is re-packed once a tile: keep it small beside
constexpr int64_t kTileColumns = 1024;  // the product itself
constexpr int64_t kMinDepthPiece = 1024;
constexpr int64_t kWantedPieces = 16;  // enough for the cores of one rank
constexpr size_t kMaxPrimitives = 512;
constexpr size_t kScratchAlignment = 64;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// m, n, k, strides of a and of b, c's row stride; then whether to add to c and to add a bias.
using Key = std::array<int64_t, 8>;

Key MakeKey(const MatmulShape& shape, int64_t m, int64_t n, int64_t k, bool accumulate, bool bias) {
  return {m,
          n,
          k,
          shape.transpose_a ? -shape.m : shape.k,
          shape.transpose_b ? -shape.k : shape.n,
          shape.n,
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
  const int64_t tiles = CeilDiv(shape.m, kTileRows) * CeilDiv(shape.n, kTileColumns);
  return std::max<int64_t>(
      1, std::min(CeilDiv(kWantedPieces, std::max<int64_t>(tiles, 1)), shape.k / kMinDepthPiece));
}

absl::Status MatmulEngine::Run(const MatmulShape& shape, const float* a, const float* b,
                               const float* bias, float* c, float* partials) {
  struct Piece {
    int64_t m0, m, n0, n, k0, k;
    const Primitive* primitive;
    float* out;
  };
  const int64_t pieces = DepthPieces(shape);
  const int64_t depth = CeilDiv(shape.k, pieces);
  std::vector<Piece> work;
  OneThreadScope one_thread;
  try {
    impl_->BeginRun();
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t k0 = p * depth;
      const int64_t k = std::min(depth, shape.k - k0);
      for (int64_t m0 = 0; m0 < shape.m; m0 += kTileRows) {
        for (int64_t n0 = 0; n0 < shape.n; n0 += kTileColumns) {
          const int64_t m = std::min(kTileRows, shape.m - m0);
          const int64_t n = std::min(kTileColumns, shape.n - n0);
          const Key key =
              MakeKey(shape, m, n, k, p == 0 && shape.accumulate, p == 0 && bias != nullptr);
          float* out = p == 0 ? c : partials + (p - 1) * shape.m * shape.n;
          work.push_back({m0, m, n0, n, k0, k, &impl_->Get(key), out + m0 * shape.n + n0});
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
    const Piece& w = work[i];
    const float* left = a + (shape.transpose_a ? w.k0 * shape.m + w.m0 : w.m0 * shape.k + w.k0);
    const float* right = b + (shape.transpose_b ? w.n0 * shape.k + w.k0 : w.k0 * shape.n + w.n0);
    try {
      // oneDNN takes inputs as void*; it does not write to them.
      const Primitive& p = *w.primitive;
      std::unordered_map<int, dnnl::memory> args = {
          {DNNL_ARG_SRC, dnnl::memory(p.a, impl_->engine, const_cast<float*>(left))},
          {DNNL_ARG_WEIGHTS, dnnl::memory(p.b, impl_->engine, const_cast<float*>(right))},
          {DNNL_ARG_DST, dnnl::memory(p.c, impl_->engine, w.out)}};
      if (!p.scratch.is_zero()) {
        std::vector<char>& scratch = impl_->scratch[ThreadIndex()];
        const size_t size = p.scratch.get_size();
        if (scratch.size() < size + kScratchAlignment) scratch.resize(size + kScratchAlignment);
        void* aligned = scratch.data();
        size_t space = scratch.size();
        std::align(kScratchAlignment, size, aligned, space);
        args.emplace(DNNL_ARG_SCRATCHPAD, dnnl::memory(p.scratch, impl_->engine, aligned));
      }
      if (!p.bias.is_zero()) {
        args.emplace(DNNL_ARG_BIAS,
                     dnnl::memory(p.bias, impl_->engine, const_cast<float*>(bias) + w.n0));
      }
      dnnl::stream stream(impl_->engine);
      p.matmul.execute(stream, args);
      stream.wait();
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
    const int64_t size = shape.m * shape.n;
    ParallelRanges(impl_->threads, size, 16384, [&](int64_t begin, int64_t end) {
      for (int64_t p = 0; p + 1 < pieces; ++p) {
        const float* partial = partials + p * size;
        for (int64_t i = begin; i < end; ++i) c[i] += partial[i];
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cpu
