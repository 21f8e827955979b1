#include "coordinator/planner/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

int64_t ToCoverage(double value) {
  return std::llround(std::clamp(value, 0.0, 1.0) * static_cast<double>(kFullCoverage));
}

int64_t Interpolate(absl::Span<const CurvePoint> curve, int32_t budget) {
  const auto above =
      std::upper_bound(curve.begin(), curve.end(), budget,
                       [](int32_t k, const CurvePoint& point) { return k < point.budget; });
  if (above == curve.end()) return curve.back().coverage;
  if (above == curve.begin()) return curve.front().coverage;
  const CurvePoint& left = *(above - 1);
  return left.coverage +
         (above->coverage - left.coverage) * (budget - left.budget) / (above->budget - left.budget);
}

// Default curves of long batches share their sums: H(m) for all m up to the longest sequence.
std::vector<double> HarmonicSums(const v1::PlanRequest& request) {
  uint64_t longest = 1;
  for (const v1::Sequence& s : request.sequences()) {
    if (s.coverage().budget_blocks_size() == 0) {
      longest = std::max(longest, BlocksOf(s.tokens(), request.settings().block_tokens()));
    }
  }
  std::vector<double> sums(longest, 0.0);
  for (uint64_t m = 1; m < longest; ++m) sums[m] = sums[m - 1] + 1.0 / static_cast<double>(m);
  return sums;
}

void AppendCurve(const v1::Sequence& s, int32_t blocks, const std::vector<double>& harmonic,
                 std::vector<CurvePoint>& out) {
  if (blocks == 1) {
    out.push_back({1, kFullCoverage});
    return;
  }
  const v1::CoverageCurve& curve = s.coverage();
  if (curve.budget_blocks_size() == 0) {
    for (const uint32_t k : CoverageGrid(static_cast<uint32_t>(blocks))) {
      out.push_back({static_cast<int32_t>(k), ToCoverage(harmonic[k - 1] / harmonic[blocks - 1])});
    }
    return;
  }
  int64_t least = 0;
  for (int i = 0; i < curve.budget_blocks_size(); ++i) {
    const auto budget = static_cast<int32_t>(curve.budget_blocks(i));
    least = budget == 1        ? 0
            : budget == blocks ? kFullCoverage
                               : std::max(least, ToCoverage(curve.coverage(i)));
    out.push_back({budget, least});
  }
  if (out.back().budget < blocks) out.push_back({blocks, kFullCoverage});
}

}  // namespace

absl::StatusOr<Problem> Problem::Create(const v1::PlanRequest& request) {
  const v1::PlanSettings& settings = request.settings();
  Problem p(LatencyPredictor(request.has_latency() ? request.latency() : DefaultLatencyModel(),
                             settings.block_tokens()));
  p.stages_ = static_cast<int>(std::max<uint32_t>(1, settings.pipeline_parallel_size()));
  p.fixed_count_ = static_cast<int>(settings.micro_batches_per_rank());
  p.equal_count_ = settings.equal_micro_batch_count() || p.fixed_count_ > 0;
  p.micro_batch_size_ = static_cast<int>(settings.micro_batch_size());
  if (settings.paper_anchor() != v1::PAPER_ANCHOR_UNSPECIFIED) {
    p.paper_anchor_ = settings.paper_anchor();
  }
  if (settings.search_effort() != v1::SEARCH_EFFORT_UNSPECIFIED) {
    p.search_effort_ = settings.search_effort();
  }
  p.zero_weight_ns_ = p.predictor_.constant_ns() + p.predictor_.SequenceNs(1, 1, 1);

  const auto cap = static_cast<int64_t>(settings.max_tokens_per_micro_batch());
  p.ranks_.assign(settings.data_parallel_size(), ProblemRank{kFixedOne, cap});
  for (const v1::RankFactor& factor : request.rank_factors()) {
    ProblemRank& rank = p.ranks_[factor.rank()];
    rank.time_factor = std::max<int64_t>(1, ToFixed(factor.time_factor()));
    if (factor.token_factor() > 0) {
      rank.cap_tokens = std::max<int64_t>(
          1, static_cast<int64_t>(static_cast<double>(cap) * factor.token_factor()));
    }
  }
  int64_t largest_cap = 0;
  for (const ProblemRank& rank : p.ranks_) largest_cap = std::max(largest_cap, rank.cap_tokens);

  const int n = request.sequences_size();
  std::vector<int32_t> by_id(n);
  std::iota(by_id.begin(), by_id.end(), 0);
  std::sort(by_id.begin(), by_id.end(), [&](int32_t a, int32_t b) {
    return request.sequences(a).id() < request.sequences(b).id();
  });
  const std::vector<double> harmonic = HarmonicSums(request);
  const bool fixed_budgets = settings.coverage_floor().kind_case() == v1::CoverageFloor::kMode &&
                             settings.coverage_floor().mode() == v1::COVERAGE_FLOOR_MODE_FIXED;
  const int64_t keep = kFullCoverage - ToCoverage(settings.coverage_guard());
  const auto min_budget = static_cast<int32_t>(std::max<uint32_t>(1, settings.min_budget_blocks()));
  const auto max_budget = settings.max_budget_blocks() == 0
                              ? std::numeric_limits<int32_t>::max()
                              : static_cast<int32_t>(settings.max_budget_blocks());
  const int64_t padding = std::max<uint32_t>(1, settings.padding_multiple());
  p.arrival_order_.resize(n);
  p.sequences_.reserve(n);
  for (int i = 0; i < n; ++i) {
    const v1::Sequence& in = request.sequences(by_id[i]);
    p.arrival_order_[by_id[i]] = i;
    ProblemSequence s;
    s.id = in.id();
    s.tokens = static_cast<int64_t>(in.tokens());
    s.padded_tokens = (s.tokens + padding - 1) / padding * padding;
    s.supervised_tokens = static_cast<int64_t>(in.supervised_tokens());
    s.blocks = static_cast<int32_t>(BlocksOf(in.tokens(), settings.block_tokens()));
    if (s.padded_tokens > largest_cap) {
      absl::Status status = absl::InvalidArgumentError(
          absl::StrCat("sequence ", s.id, " has ", s.tokens, " tokens (", s.padded_tokens,
                       " with padding) but a micro-batch holds at most ", largest_cap,
                       "; raise max_tokens_per_micro_batch or split the sequence"));
      v1::SequenceRejected detail;
      detail.set_sequence_id(s.id);
      detail.set_tokens(in.tokens());
      detail.set_limit_tokens(static_cast<uint64_t>(largest_cap));
      AttachDetail(status, detail);
      return status;
    }
    s.fixed_time = p.predictor_.FixedPart(s.tokens, s.blocks);
    s.curve_begin = static_cast<uint32_t>(p.curve_points_.size());
    AppendCurve(in, s.blocks, harmonic, p.curve_points_);
    s.curve_end = static_cast<uint32_t>(p.curve_points_.size());
    const int32_t base = static_cast<int32_t>(settings.base_budget_blocks());
    s.base = std::max(min_budget, std::min(base, s.blocks));
    s.high = std::max(min_budget, std::min(max_budget, s.blocks));
    s.low = s.base;
    p.sequences_.push_back(s);
    const int64_t base_coverage = p.Coverage(i, s.base);
    p.base_coverage_sum_ += base_coverage;
    if (fixed_budgets) {
      p.sequences_[i].high = s.base;
      continue;
    }
    // Coverage grows with the budget, so the least budget within the guard is found by halving.
    int32_t below = std::min(min_budget, s.base) - 1;
    int32_t kept = s.base;
    while (kept - below > 1) {
      const int32_t middle = below + (kept - below) / 2;
      const bool ok = Int128{p.Coverage(i, middle)} * kFullCoverage >= Int128{keep} * base_coverage;
      (ok ? kept : below) = middle;
    }
    p.sequences_[i].low = kept;
  }

  if (settings.coverage_floor().kind_case() == v1::CoverageFloor::kValue) {
    p.floor_sum_ = ToCoverage(settings.coverage_floor().value()) * n;
  } else if (settings.coverage_floor().mode() != v1::COVERAGE_FLOOR_MODE_GUARD) {
    p.floor_sum_ = p.base_coverage_sum_;
  }
  return p;
}

std::vector<int32_t> Problem::AllSequences() const {
  std::vector<int32_t> all(sequences_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int32_t> Problem::BaseBudgets() const {
  std::vector<int32_t> budgets(sequences_.size());
  for (size_t i = 0; i < budgets.size(); ++i) budgets[i] = sequences_[i].base;
  return budgets;
}

int64_t Problem::Coverage(int i, int32_t budget) const {
  const ProblemSequence& s = sequences_[i];
  if (budget >= s.blocks) return kFullCoverage;
  return Interpolate(Curve(i), budget);
}

}  // namespace sparsebalance::planner
