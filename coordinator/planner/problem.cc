#include "coordinator/planner/problem.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

// H(m) = sum of 1 / j over j <= m, which the default curves of a batch share.
class HarmonicSums {
 public:
  double operator[](int32_t m) {
    while (static_cast<int32_t>(sums_.size()) <= m) {
      sums_.push_back(sums_.back() + 1.0 / static_cast<double>(sums_.size()));
    }
    return sums_[m];
  }

 private:
  std::vector<double> sums_ = {0.0};
};

absl::Status TooLong(const ProblemSequence& s, int64_t padded, int64_t largest_cap) {
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("sequence ", s.id, " has ", s.tokens, " tokens (", padded,
                   " with padding) but a micro-batch holds at most ", largest_cap,
                   "; raise max_tokens_per_micro_batch or split the sequence"));
  v1::SequenceRejected detail;
  detail.set_sequence_id(s.id);
  detail.set_tokens(static_cast<uint64_t>(s.tokens));
  detail.set_limit_tokens(static_cast<uint64_t>(largest_cap));
  AttachDetail(status, detail);
  return status;
}

}  // namespace

class Problem::SequenceReader {
 public:
  SequenceReader(const v1::PlanRequest& request, Problem& problem) : problem_(problem) {
    const v1::PlanSettings& settings = request.settings();
    padding_ = std::max<uint32_t>(1, settings.padding_multiple());
    block_tokens_ = settings.block_tokens();
    base_ = static_cast<int32_t>(settings.base_budget_blocks());
    min_ = static_cast<int32_t>(std::max<uint32_t>(1, settings.min_budget_blocks()));
    max_ = settings.max_budget_blocks() == 0 ? std::numeric_limits<int32_t>::max()
                                             : static_cast<int32_t>(settings.max_budget_blocks());
    keep_ = kFullCoverage - ToCoverage(settings.coverage_guard());
    fixed_ = settings.coverage_floor().kind_case() == v1::CoverageFloor::kMode &&
             settings.coverage_floor().mode() == v1::COVERAGE_FLOOR_MODE_FIXED;
    problem_.fixed_budgets_ = fixed_;
    const std::string& policy = settings.policy();
    deals_layers_ =
        settings.layer_budgets() && !fixed_ && (policy.empty() || policy == "sparsebalance");
  }

  void Read(const v1::Sequence& in) {
    ProblemSequence s;
    s.id = in.id();
    s.tokens = static_cast<int64_t>(in.tokens());
    problem_.padded_tokens_.push_back(
        padding_ == 1 ? s.tokens : (s.tokens + padding_ - 1) / padding_ * padding_);
    s.supervised_tokens = static_cast<int64_t>(in.supervised_tokens());
    s.blocks = static_cast<int32_t>(BlocksOf(in.tokens(), block_tokens_));
    s.fixed_time = problem_.predictor_.FixedPart(s.tokens, s.blocks);
    s.base = std::max(min_, std::min(base_, s.blocks));
    s.high = std::max(min_, std::min(max_, s.blocks));
    s.low = s.base;
    s.layers = -1;
    s.curve_begin = static_cast<uint32_t>(problem_.curve_points_.size());
    if (in.layer_coverage_size() > 0 && s.blocks > min_) {
      ReadLayers(in, s);
    } else if (fixed_) {
      // No other budget is ever looked at.
      s.base_coverage = BaseCoverage(in, s);
      problem_.curve_points_.push_back({s.base, s.base_coverage});
      s.curve_end = static_cast<uint32_t>(problem_.curve_points_.size());
    } else {
      AppendCurve(in, s.blocks, problem_.curve_points_);
      s.curve_end = static_cast<uint32_t>(problem_.curve_points_.size());
      s.base_coverage = CoverageOf(s, s.base);
    }
    problem_.base_coverage_sum_ += s.base_coverage;
    problem_.max_deferred_steps_ =
        std::max<uint64_t>(problem_.max_deferred_steps_, in.deferred_steps());
    if (fixed_) {
      s.high = s.base;
    } else if (s.layers < 0) {
      s.low = LowestWithinGuard(s);
    }
    problem_.sequences_.push_back(s);
  }

 private:
  void ReadLayers(const v1::Sequence& in, ProblemSequence& s) {
    LayerBudgets layers(in.layer_coverage(), {.blocks = s.blocks,
                                              .stages = deals_layers_ ? problem_.stages_ : 1,
                                              .base = s.base,
                                              .min = min_,
                                              .max = s.high,
                                              .keep = keep_});
    const std::vector<CurvePoint> points = deals_layers_ ? layers.Curve() : layers.UniformCurve();
    problem_.curve_points_.insert(problem_.curve_points_.end(), points.begin(), points.end());
    s.curve_end = static_cast<uint32_t>(problem_.curve_points_.size());
    s.base_coverage = layers.base_coverage();
    if (!deals_layers_) return;
    s.low = layers.least();
    s.layers = static_cast<int32_t>(problem_.layer_budgets_.size());
    problem_.layer_bounds_.push_back(layers.BoundingCurve());
    problem_.layer_budgets_.push_back(std::move(layers));
  }

  int64_t BaseCoverage(const v1::Sequence& in, const ProblemSequence& s) {
    if (s.base >= s.blocks) return kFullCoverage;
    if (!in.coverage().budget_blocks().empty()) {
      return CoverageAtBudget(in.coverage(), s.blocks, s.base);
    }
    scratch_.clear();
    AppendCurve(in, s.blocks, scratch_);
    return Interpolate(scratch_, s.base);
  }

  void AppendCurve(const v1::Sequence& in, int32_t blocks, std::vector<CurvePoint>& out) {
    if (blocks == 1) {
      out.push_back({1, kFullCoverage});
    } else if (in.coverage().budget_blocks_size() > 0) {
      AppendPoints(in.coverage(), blocks, out);
    } else {
      const double all = harmonic_[blocks - 1];
      for (const uint32_t k : CoverageGrid(static_cast<uint32_t>(blocks))) {
        out.push_back(
            {static_cast<int32_t>(k), ToCoverage(harmonic_[static_cast<int32_t>(k) - 1] / all)});
      }
    }
  }

  int64_t CoverageOf(const ProblemSequence& s, int32_t budget) const {
    if (budget >= s.blocks) return kFullCoverage;
    return Interpolate(absl::MakeConstSpan(problem_.curve_points_)
                           .subspan(s.curve_begin, s.curve_end - s.curve_begin),
                       budget);
  }

  // Coverage grows with the budget, so the least one is found by halving.
  int32_t LowestWithinGuard(const ProblemSequence& s) const {
    int32_t below = std::min(min_, s.base) - 1;
    int32_t kept = s.base;
    while (kept - below > 1) {
      const int32_t middle = below + (kept - below) / 2;
      const bool ok =
          Int128{CoverageOf(s, middle)} * kFullCoverage >= Int128{keep_} * s.base_coverage;
      (ok ? kept : below) = middle;
    }
    return kept;
  }

  Problem& problem_;
  HarmonicSums harmonic_;
  std::vector<CurvePoint> scratch_;
  int64_t padding_, block_tokens_;
  int32_t base_, min_, max_;
  int64_t keep_;
  bool fixed_, deals_layers_;
};

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
  const auto lower_id = [&](int32_t a, int32_t b) {
    return request.sequences(a).id() < request.sequences(b).id();
  };
  if (!std::is_sorted(by_id.begin(), by_id.end(), lower_id)) {
    std::sort(by_id.begin(), by_id.end(), lower_id);
  }
  p.arrival_order_.resize(n);
  p.sequences_.reserve(n);
  p.padded_tokens_.reserve(n);
  p.curve_points_.reserve(n);
  SequenceReader reader(request, p);
  for (int i = 0; i < n; ++i) {
    p.arrival_order_[by_id[i]] = i;
    reader.Read(request.sequences(by_id[i]));
    const ProblemSequence& s = p.sequences_.back();
    const int64_t padded = p.padded_tokens_.back();
    if (padded > largest_cap) return TooLong(s, padded, largest_cap);
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

}  // namespace sparsebalance::planner
