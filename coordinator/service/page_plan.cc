#include "coordinator/service/page_plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/timeline.h"
#include "google/protobuf/util/json_util.h"

namespace sparsebalance {
namespace {

using nlohmann::json;

// Lower bound of the class of a length: the largest 2^k or 3 * 2^(k-1) that is not above it.
uint64_t ClassOf(uint64_t tokens) {
  const uint64_t power = std::bit_floor(std::max<uint64_t>(tokens, 1));
  return power >= 2 && tokens >= power + power / 2 ? power + power / 2 : power;
}

// The next class's lower bound: 2^k -> 3 * 2^(k-1) -> 2^(k+1).
uint64_t ClassEnd(uint64_t from) {
  if (from == 1) return 2;
  return std::has_single_bit(from) ? from + from / 2 : std::bit_floor(from) * 2;
}

double CoverageOf(const v1::Sequence& sequence, uint32_t blocks, uint32_t budget,
                  const v1::Slice* slice) {
  const auto at = [blocks](const v1::CoverageCurve& curve, uint32_t k) {
    return planner::CoverageAt(curve, blocks, std::clamp<uint32_t>(k, 1, blocks));
  };
  const int layers = sequence.layer_coverage_size();
  if (layers == 0) return at(sequence.coverage(), budget);
  const bool by_layer = slice != nullptr && slice->layer_budget_blocks_size() == layers;
  double sum = 0;
  for (int l = 0; l < layers; ++l) {
    sum += at(sequence.layer_coverage(l), by_layer ? slice->layer_budget_blocks(l) : budget);
  }
  return sum / layers;
}

json MicroBatchJson(const v1::MicroBatch& micro, int named) {
  json out = {{"predicted_ms", micro.predicted_ms()},
              {"zero_weight", micro.zero_weight()},
              {"sequences_total", micro.slices_size()}};
  uint64_t tokens = 0;
  json sequences = json::array();
  for (const v1::Slice& slice : micro.slices()) {
    const uint64_t length = slice.token_end() - slice.token_begin();
    tokens += length;
    if (static_cast<int>(sequences.size()) >= named) continue;
    // An id may be above 2^53, which a number of JavaScript cannot tell from its neighbours.
    sequences.push_back({{"id", std::to_string(slice.sequence_id())},
                         {"tokens", length},
                         {"budget_blocks", slice.budget_blocks()}});
  }
  out["tokens"] = tokens;
  out["sequences"] = std::move(sequences);
  return out;
}

std::vector<const v1::RankPlan*> SlowestRanks(const v1::Plan& plan, uint32_t stages,
                                              const PagePlanLimits& limits) {
  std::vector<const v1::RankPlan*> ranks;
  for (const v1::RankPlan& rank : plan.ranks()) ranks.push_back(&rank);
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto* a, const auto* b) {
    return a->predicted_ms() > b->predicted_ms();
  });
  size_t kept = 0;
  size_t operations = 0;
  for (; kept < ranks.size() && kept < limits.ranks; ++kept) {
    operations += size_t{2} * stages * static_cast<size_t>(ranks[kept]->micro_batches_size());
    const bool fits = (kept + 1) * stages <= limits.lanes && operations <= limits.operations;
    if (kept > 0 && !fits) break;
  }
  ranks.resize(kept);
  std::sort(ranks.begin(), ranks.end(),
            [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  return ranks;
}

json Timeline(const v1::PlanRequest& request, const v1::Plan& plan, const PagePlanLimits& limits) {
  const uint32_t stages = std::max<uint32_t>(1, request.settings().pipeline_parallel_size());
  std::map<uint32_t, double> factors;
  for (const v1::RankFactor& factor : request.rank_factors()) {
    factors[factor.rank()] = factor.time_factor();
  }
  const std::vector<const v1::RankPlan*> drawn = SlowestRanks(plan, stages, limits);
  // More only where a single rank has more.
  const size_t most = std::max<size_t>(
      1, limits.operations / (size_t{2} * stages * std::max<size_t>(1, drawn.size())));
  bool cut = false;
  json ranks = json::array();
  for (const v1::RankPlan* rank : drawn) {
    const int shown = drawn.size() == 1
                          ? static_cast<int>(std::min<size_t>(
                                most, static_cast<size_t>(rank->micro_batches_size())))
                          : rank->micro_batches_size();
    cut |= shown < rank->micro_batches_size();
    json lanes = json::array();
    for (const planner::StageTimeline& lane :
         planner::TimelineOf(*rank, stages, request.latency().forward_fraction())) {
      json operations = json::array();
      for (const planner::Operation& op : lane.operations) {
        if (op.micro_batch >= shown) continue;
        operations.push_back({op.micro_batch, op.backward ? 1 : 0, op.begin_ms, op.end_ms});
      }
      lanes.push_back(std::move(operations));
    }
    json micro_batches = json::array();
    for (int m = 0; m < shown; ++m) {
      micro_batches.push_back(MicroBatchJson(rank->micro_batches(m), limits.sequences));
    }
    const auto factor = factors.find(rank->rank());
    ranks.push_back({{"rank", rank->rank()},
                     {"predicted_ms", rank->predicted_ms()},
                     {"time_factor", factor == factors.end() ? 1.0 : factor->second},
                     {"micro_batches_total", rank->micro_batches_size()},
                     {"micro_batches", std::move(micro_batches)},
                     {"stages", std::move(lanes)}});
  }
  return {{"stages", stages},
          {"ranks_total", plan.ranks_size()},
          {"cut", cut},
          {"ranks", std::move(ranks)}};
}

}  // namespace

std::vector<LengthClass> LengthClasses(const v1::PlanRequest& request, const v1::Plan& plan) {
  absl::flat_hash_map<uint64_t, const v1::Sequence*> known;
  for (const v1::Sequence& sequence : request.sequences()) known[sequence.id()] = &sequence;
  // By look-ahead a plan may train sequences of the batches that follow.
  for (const v1::UpcomingBatch& batch : request.upcoming()) {
    for (const v1::Sequence& sequence : batch.sequences()) known[sequence.id()] = &sequence;
  }
  const uint32_t block_tokens = std::max<uint32_t>(1, request.settings().block_tokens());
  std::map<uint64_t, LengthClass> classes;
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::MicroBatch& micro : rank.micro_batches()) {
      for (const v1::Slice& slice : micro.slices()) {
        const auto found = known.find(slice.sequence_id());
        if (found == known.end()) continue;
        const v1::Sequence& sequence = *found->second;
        const auto blocks =
            static_cast<uint32_t>(planner::BlocksOf(sequence.tokens(), block_tokens));
        const uint32_t budget = std::min(slice.budget_blocks(), blocks);
        const double coverage = CoverageOf(sequence, blocks, budget, &slice);
        LengthClass& c = classes[ClassOf(sequence.tokens())];
        c.least_budget = c.sequences == 0 ? budget : std::min(c.least_budget, budget);
        c.least_coverage = c.sequences == 0 ? coverage : std::min(c.least_coverage, coverage);
        c.most_budget = std::max(c.most_budget, budget);
        ++c.sequences;
        c.tokens += sequence.tokens();
        c.mean_budget += budget;
        c.mean_coverage += coverage;
        c.mean_base_coverage +=
            CoverageOf(sequence, blocks, request.settings().base_budget_blocks(), nullptr);
      }
    }
  }
  std::vector<LengthClass> out;
  for (auto& [from, c] : classes) {
    c.from_tokens = from;
    c.below_tokens = ClassEnd(from);
    const auto count = static_cast<double>(c.sequences);
    c.mean_budget /= count;
    c.mean_coverage /= count;
    c.mean_base_coverage /= count;
    out.push_back(c);
  }
  return out;
}

json PagePlan(const PlannedStep& planned, const PagePlanLimits& limits) {
  const v1::PlanRequest& request = planned.request;
  v1::Plan figures = planner::PlanForRanks(planned.plan, {});
  figures.clear_exchanges();
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(figures, &text, print).ok()) text = "{}";
  json plan = json::parse(text, nullptr, /*allow_exceptions=*/false);
  plan.erase("ranks");
  plan.erase("exchanges");

  json lengths = json::array();
  for (const LengthClass& c : LengthClasses(request, planned.plan)) {
    lengths.push_back({{"from_tokens", c.from_tokens},
                       {"below_tokens", c.below_tokens},
                       {"sequences", c.sequences},
                       {"tokens", c.tokens},
                       {"least_budget", c.least_budget},
                       {"most_budget", c.most_budget},
                       {"mean_budget", c.mean_budget},
                       {"mean_coverage", c.mean_coverage},
                       {"least_coverage", c.least_coverage},
                       {"mean_base_coverage", c.mean_base_coverage}});
  }
  return {{"generation", std::to_string(planned.generation)},
          {"plan", std::move(plan)},
          {"step_constant_ms", request.latency().step_constant_ms()},
          {"base_budget_blocks", request.settings().base_budget_blocks()},
          {"block_tokens", request.settings().block_tokens()},
          {"exchanges_total", planned.plan.exchanges_size()},
          {"timeline", Timeline(request, planned.plan, limits)},
          {"lengths", std::move(lengths)}};
}

}  // namespace sparsebalance
