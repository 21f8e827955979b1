// Time to make a plan, by sequences and ranks. Lengths have a long tail; every sequence has a curve
// on the usual grid.

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "benchmark/benchmark.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"
#include "google/protobuf/arena.h"

namespace sparsebalance::planner {
namespace {

enum class Budgets { kFloor, kFixed };

v1::PlanRequest Job(int64_t sequences, int64_t ranks, int64_t stages, const std::string& policy,
                    v1::SearchEffort effort, Budgets budgets) {
  v1::PlanRequest request;
  v1::PlanSettings& s = *request.mutable_settings();
  s.set_policy(policy);
  s.set_data_parallel_size(static_cast<uint32_t>(ranks));
  s.set_pipeline_parallel_size(static_cast<uint32_t>(stages));
  s.set_block_tokens(256);
  s.set_base_budget_blocks(32);
  s.set_max_tokens_per_micro_batch(131072);
  s.set_coverage_guard(0.1);
  s.set_search_effort(effort);
  if (budgets == Budgets::kFixed) {
    s.mutable_coverage_floor()->set_mode(v1::COVERAGE_FLOOR_MODE_FIXED);
  }
  std::mt19937_64 random(1);
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  for (int64_t i = 0; i < sequences; ++i) {
    v1::Sequence& q = *request.add_sequences();
    q.set_id(static_cast<uint64_t>(i));
    q.set_tokens(std::min<uint64_t>(72'000, static_cast<uint64_t>(256 * std::exp(6 * unit()))));
    *q.mutable_coverage() =
        PowerCurve(static_cast<uint32_t>(BlocksOf(q.tokens(), 256)), 0.6 + 1.2 * unit());
  }
  return request;
}

void BM_MakePlan(benchmark::State& state, const std::string& policy, int64_t stages,
                 v1::SearchEffort effort = v1::SEARCH_EFFORT_NORMAL,
                 Budgets budgets = Budgets::kFloor) {
  const v1::PlanRequest request =
      Job(state.range(0), state.range(1), stages, policy, effort, budgets);
  double gap = 0;
  for (auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores)
    // As the coordinator does.
    google::protobuf::Arena arena;
    auto& plan = *google::protobuf::Arena::CreateMessage<v1::Plan>(&arena);
    const absl::Status made = MakePlan(request, plan);
    if (!made.ok()) state.SkipWithError(made.ToString().c_str());
    gap = plan.predicted_step_ms() / plan.lower_bound_ms() - 1;
  }
  state.counters["gap"] = gap;
}

void Sizes(benchmark::internal::Benchmark* b) {
  b->Args({512, 16})->Args({2048, 64})->Args({65536, 1024})->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(BM_MakePlan, length, "length", 1)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, karmarkar_karp, "karmarkar-karp", 1)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, paper, "paper", 1)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, sparsebalance, "sparsebalance", 1)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, sparsebalance_fixed, "sparsebalance", 1, v1::SEARCH_EFFORT_NORMAL,
                  Budgets::kFixed)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, sparsebalance_4_stages, "sparsebalance", 4)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_MakePlan, sparsebalance_4_stages_fast, "sparsebalance", 4,
                  v1::SEARCH_EFFORT_FAST)
    ->Apply(Sizes);

}  // namespace
}  // namespace sparsebalance::planner
