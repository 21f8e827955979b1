// Forward and backward of block-sparse attention, as useful floating-point operations a second.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/backend.h"
#include "kernels/create_backend.h"

namespace sparsebalance::kernels {
namespace {

struct Problem {
  Problem(int64_t tokens, int block_tokens, int32_t budget, int num_heads, int dim)
      : backend(*CreateBackend("cpu")),
        blocks(*MakePackedBlocks({0, tokens}, block_tokens)),
        layout(*backend->CreateLayout(blocks)),
        shape{num_heads,
              num_heads,
              dim,
              width(num_heads, dim),
              width(num_heads, dim),
              width(num_heads, dim)},
        q(Values(tokens, 1)),
        k(Values(tokens, 2)),
        v(Values(tokens, 3)),
        out(*backend->Allocate<float>(tokens * shape.q_stride)),
        out_grad(Values(tokens, 4)),
        lse(*backend->Allocate<float>(tokens * num_heads)),
        means(*backend->Allocate<float>(blocks.blocks() * shape.q_stride)),
        grads(*backend->Allocate<float>(3 * tokens * shape.q_stride)),
        budgets{budget},
        // One product of a query and a key is 2 * dim operations, for each head.
        product_flops(2.0 * dim * num_heads * AttendedPairs(tokens, block_tokens, budget)) {
    Check(backend->BlockMeans(shape, *layout, k.span(), means.span()));
    lists = std::move(*backend->SelectBlocks(shape, *layout, q.span(), means.span(), budgets));
  }

  static int64_t width(int num_heads, int dim) { return static_cast<int64_t>(num_heads) * dim; }
  static void Check(const absl::Status& status) {
    if (!status.ok()) std::abort();
  }

  DeviceArray<float> Values(int64_t tokens, uint32_t seed) {
    std::vector<float> host(tokens * shape.q_stride);
    uint32_t x = seed;
    for (float& f : host) {
      x = x * 1664525U + 1013904223U;
      f = static_cast<float>(x >> 8) / 8388608.0F - 1.0F;
    }
    DeviceArray<float> out_array = *backend->Allocate<float>(static_cast<int64_t>(host.size()));
    Check(backend->CopyToDevice(host, out_array.span()));
    return out_array;
  }

  void Forward() {
    Check(backend->AttentionForward(shape, *layout, lists, q.span(), k.span(), v.span(), out.span(),
                                    lse.span()));
  }
  void Backward() {
    const int64_t n = q.size();
    Check(backend->AttentionBackward(shape, *layout, lists, q.span(), k.span(), v.span(),
                                     out.span(), lse.span(), out_grad.span(),
                                     grads.span().Slice(0, n), grads.span().Slice(n, n),
                                     grads.span().Slice(2 * n, n)));
  }

  std::unique_ptr<Backend> backend;
  PackedBlocks blocks;
  std::unique_ptr<AttentionLayout> layout;
  AttentionShape shape;
  DeviceArray<float> q, k, v, out, out_grad, lse, means, grads;
  std::vector<int32_t> budgets;
  BlockLists lists;
  double product_flops;
};

Problem MakeProblem(const benchmark::State& state) {
  return Problem(state.range(0), static_cast<int>(state.range(1)),
                 static_cast<int32_t>(state.range(2)), 4, static_cast<int>(state.range(3)));
}

void ReportFlops(benchmark::State& state, double flops) {
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void AttentionForward(benchmark::State& state) {
  Problem problem = MakeProblem(state);
  while (state.KeepRunning()) problem.Forward();
  ReportFlops(state, 2 * problem.product_flops);
}

void AttentionBackward(benchmark::State& state) {
  Problem problem = MakeProblem(state);
  problem.Forward();
  while (state.KeepRunning()) problem.Backward();
  ReportFlops(state, 5 * problem.product_flops);
}

void SelectBlocks(benchmark::State& state) {
  Problem problem = MakeProblem(state);
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(problem.backend->SelectBlocks(
        problem.shape, *problem.layout, problem.q.span(), problem.means.span(), problem.budgets));
  }
}

void CoverageCurves(benchmark::State& state) {
  Problem problem = MakeProblem(state);
  while (state.KeepRunning()) {
    benchmark::DoNotOptimize(problem.backend->CoverageCurves(
        problem.shape, *problem.layout, problem.q.span(), problem.means.span(), 8));
  }
}

void DenseProduct(benchmark::State& state) {
  auto backend = *CreateBackend("cpu");
  const int64_t m = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  const DeviceArray<float> a = *backend->Allocate<float>(m * k);
  const DeviceArray<float> b = *backend->Allocate<float>(n * k);
  const DeviceArray<float> c = *backend->Allocate<float>(m * n);
  Problem::Check(backend->Fill(a.span(), 0.5F));
  Problem::Check(backend->Fill(b.span(), 0.5F));
  while (state.KeepRunning()) {
    Problem::Check(backend->Matmul({.m = m, .n = n, .k = k, .transpose_b = true}, a.span(),
                                   b.span(), {}, c.span()));
  }
  ReportFlops(state, 2.0 * static_cast<double>(m * n * k));
}

void AttentionArgs(benchmark::internal::Benchmark* b) {
  for (const int64_t tokens : {2048, 8192}) {
    b->Args({tokens, 64, 8, 32})->Args({tokens, 128, 8, 64})->Args({tokens, 256, 32, 64});
  }
  b->ArgNames({"tokens", "block", "budget", "dim"})->Unit(benchmark::kMillisecond);
}

BENCHMARK(AttentionForward)->Apply(AttentionArgs);
BENCHMARK(AttentionBackward)->Apply(AttentionArgs);
BENCHMARK(SelectBlocks)->Apply(AttentionArgs);
BENCHMARK(CoverageCurves)->Apply(AttentionArgs);
BENCHMARK(DenseProduct)->Args({1024, 1024, 1024})->Args({8192, 384, 128})->Args({8192, 704, 128});

}  // namespace
}  // namespace sparsebalance::kernels
