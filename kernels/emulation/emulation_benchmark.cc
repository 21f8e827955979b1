// How fast the emulation is: useful floating-point operations a second of matrix products, and
// switches between threads. In a release build:
//
//   build/release/bench/sb_emulation_benchmark --benchmark_min_time=1
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/emulation/sample_kernels.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::Bf16;

void Check(const absl::Status& status) {
  if (!status.ok()) std::abort();
}

Order OrderArg(int64_t arg) {
  return arg == 0 ? Order::kForward : arg == 1 ? Order::kReversed : Order::kShuffled;
}

// cp.async, ldmatrix and mma in the proportions of a real kernel.
void TileProduct(benchmark::State& state) {
  Device device({.order = OrderArg(state.range(0))});
  const int64_t m = 256;
  const int64_t n = 256;
  const int64_t k = 256;
  const std::vector<Bf16> ones(m * k, Bf16(1.0F));
  const auto a = *device.Allocate<Bf16>(m * k, "a");
  const auto b = *device.Allocate<Bf16>(n * k, "b");
  const auto c = *device.Allocate<float>(m * n, "c");
  Check(device.CopyToDevice(ones.data(), m * k, a));
  Check(device.CopyToDevice(ones.data(), n * k, b));
  while (state.KeepRunning()) {
    Check(cuda::LaunchTileProduct(&device, a, b, /*transposed_b=*/true, m, n, k, c));
  }
  state.counters["flops"] =
      benchmark::Counter(2.0 * m * n * k, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(TileProduct)->ArgName("order")->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

void MmaOnly(int steps, cuda::DevicePtr<float> to) {
  float sums[4] = {};
  const uint32_t a[4] = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
  const uint32_t b[2] = {0x3F803F80, 0x3F803F80};
  for (int i = 0; i < steps; ++i) cuda::MmaM16N8K16(sums, a, b, sums);
  to[cuda::LinearThread()] = sums[0];
}

void Mma(benchmark::State& state) {
  Device device;
  constexpr int kSteps = 1000;
  constexpr int kWarps = 4;
  const auto to = *device.Allocate<float>(32 * kWarps, "to");
  while (state.KeepRunning()) {
    Check(cuda::Launch(MmaOnly, {.block = {32 * kWarps}}, &device, kSteps, to));
  }
  state.counters["flops"] =
      benchmark::Counter(4096.0 * kSteps * kWarps, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Mma)->Unit(benchmark::kMillisecond);

void BarriersOnly(int steps) {
  for (int i = 0; i < steps; ++i) cuda::SyncThreads();
}

void Barriers(benchmark::State& state) {
  Device device({.order = OrderArg(state.range(0))});
  constexpr int kSteps = 1000;
  const auto threads = static_cast<unsigned>(state.range(1));
  while (state.KeepRunning()) {
    Check(cuda::Launch(BarriersOnly, {.block = {threads}}, &device, kSteps));
  }
  state.counters["switches"] =
      benchmark::Counter(double{kSteps} * threads, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Barriers)
    ->ArgNames({"order", "threads"})
    ->ArgsProduct({{0, 2}, {128, 1024}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sparsebalance::kernels::emulation
