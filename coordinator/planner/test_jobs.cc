#include "coordinator/planner/test_jobs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "coordinator/planner/coverage_curve.h"

namespace sparsebalance::planner {

v1::PlanRequest LinearRequest(uint32_t ranks, const std::vector<uint64_t>& tokens) {
  v1::PlanRequest request;
  v1::PlanSettings& s = *request.mutable_settings();
  s.set_policy("length");
  s.set_data_parallel_size(ranks);
  s.set_block_tokens(100);
  s.set_base_budget_blocks(4);
  s.set_max_tokens_per_micro_batch(1'000'000);
  v1::LatencyModel& m = *request.mutable_latency();
  m.set_constant_ms(1);
  m.set_per_token_ms(0.001);
  m.set_forward_fraction(0.5);
  uint64_t id = 1;
  for (const uint64_t n : tokens) {
    v1::Sequence& q = *request.add_sequences();
    q.set_id(id++);
    q.set_tokens(n);
    q.set_supervised_tokens(n / 2);
  }
  return request;
}

v1::PlanRequest RandomRequest(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t low, uint64_t high) { return low + random() % (high - low + 1); };
  const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  v1::PlanRequest request;
  request.set_step(seed);
  v1::PlanSettings& s = *request.mutable_settings();
  const uint64_t ranks = pick(1, 5);
  s.set_data_parallel_size(static_cast<uint32_t>(ranks));
  s.set_pipeline_parallel_size(static_cast<uint32_t>(pick(0, 1) == 0 ? 1 : pick(2, 4)));
  s.set_block_tokens(static_cast<uint32_t>(pick(1, 3) * 32));
  s.set_min_budget_blocks(static_cast<uint32_t>(pick(0, 3)));
  s.set_base_budget_blocks(static_cast<uint32_t>(pick(3, 12)));
  s.set_max_budget_blocks(pick(0, 3) == 0 ? 0 : static_cast<uint32_t>(pick(12, 40)));
  s.set_padding_multiple(static_cast<uint32_t>(pick(0, 2) * 8));
  s.set_micro_batch_size(static_cast<uint32_t>(pick(0, 3)));
  s.set_coverage_guard(0.05 * static_cast<double>(pick(0, 6)));
  s.set_paper_anchor(static_cast<v1::PaperAnchor>(pick(0, 3)));
  switch (pick(0, 5)) {
    case 0:
      s.mutable_coverage_floor()->set_mode(v1::COVERAGE_FLOOR_MODE_GUARD);
      break;
    case 1:
      s.mutable_coverage_floor()->set_mode(v1::COVERAGE_FLOOR_MODE_FIXED);
      break;
    case 2:
      s.mutable_coverage_floor()->set_value(0.5 + 0.5 * unit());
      break;
    default:
      break;
  }
  const uint64_t longest = pick(300, 6000);
  const uint64_t n = pick(0, 8) == 0 ? pick(0, 3) : pick(4, 30);
  uint64_t total = 0;
  for (uint64_t i = 0; i < n; ++i) {
    v1::Sequence& q = *request.add_sequences();
    q.set_id(1000 + (i * 7919) % 104729);
    q.set_tokens(pick(0, 2) == 0 ? pick(1, longest) : pick(1, longest / 4 + 1));
    q.set_supervised_tokens(q.tokens() / 2);
    total += q.tokens() + 16;
    const auto blocks = static_cast<uint32_t>(BlocksOf(q.tokens(), s.block_tokens()));
    if (pick(0, 3) > 0) *q.mutable_coverage() = PowerCurve(blocks, 0.3 + 1.7 * unit());
  }
  s.set_max_tokens_per_micro_batch(longest + 16 + pick(0, 2) * longest);
  if (pick(0, 3) == 0) {
    // Twice the room that is needed, so that a packing exists.
    s.set_micro_batches_per_rank(static_cast<uint32_t>(
        1 + 2 * total / (ranks * s.max_tokens_per_micro_batch()) + pick(1, 2)));
  } else if (pick(0, 3) == 0) {
    s.set_equal_micro_batch_count(true);
  }
  v1::LatencyModel& m = *request.mutable_latency();
  m.set_constant_ms(0.5 * unit());
  m.set_per_token_ms(0.001 * unit());
  m.set_per_pair_ms(1e-6 * unit());
  m.set_router_ms_per_token_block(pick(0, 1) == 0 ? 0 : 1e-5 * unit());
  m.set_forward_fraction(0.2 + 0.5 * unit());
  m.set_step_constant_ms(pick(0, 2) == 0 ? 3.0 : 0.0);
  for (uint32_t r = 0; r < ranks; ++r) {
    if (pick(0, 3) > 0) continue;
    v1::RankFactor& f = *request.add_rank_factors();
    f.set_rank(r);
    f.set_time_factor(0.7 + unit());
    if (s.micro_batches_per_rank() == 0 && r > 0) f.set_token_factor(0.5 + unit());
  }
  return request;
}

std::optional<std::string> SharedData() {
  // Read once, before any thread could change it.
  const char* source = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  if (source == nullptr) return std::nullopt;
  const std::string path = std::string(source) + "/../shared/data";
  if (!std::filesystem::is_directory(path)) return std::nullopt;
  return path;
}

}  // namespace sparsebalance::planner
