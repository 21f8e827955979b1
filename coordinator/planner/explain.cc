#include "coordinator/planner/explain.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/lookahead.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/validation.h"

namespace sparsebalance::planner {
namespace {

// From this share of the step on, one sequence is what limits it.
constexpr double kDominates = 0.85;
// Sequences named as having lost most.
constexpr size_t kMostLosers = 3;

class Explainer {
 public:
  Explainer(const Problem& problem, const v1::PlanRequest& request, const v1::Plan& plan)
      : problem_(problem), request_(request), plan_(plan) {}

  std::vector<std::string> Run() {
    Collect();
    Summary();
    Fallback();
    SlowestRank();
    AgainstLength();
    Coverage();
    Layers();
    Exchanges();
    Gap();
    Limit();
    Extrapolation();
    return std::move(out_);
  }

 private:
  struct Placed {
    int sequence;
    int rank;
    int32_t budget;
  };

  template <class... Args>
  void Say(const absl::FormatSpec<Args...>& format, const Args&... args) {
    out_.push_back(absl::StrFormat(format, args...));
  }

  double ComputeMs() const {
    return plan_.predicted_step_ms() - MsFromNs(problem_.predictor().step_constant_ns());
  }

  void Collect() {
    std::vector<std::pair<uint64_t, int>> index;
    index.reserve(problem_.num_sequences());
    for (int i = 0; i < problem_.num_sequences(); ++i)
      index.emplace_back(problem_.sequence(i).id, i);
    for (int r = 0; r < plan_.ranks_size(); ++r) {
      if (plan_.ranks(r).predicted_ms() > plan_.ranks(slowest_).predicted_ms()) slowest_ = r;
      for (const v1::MicroBatch& mb : plan_.ranks(r).micro_batches()) {
        for (const v1::Slice& slice : mb.slices()) {
          const auto at = std::lower_bound(index.begin(), index.end(),
                                           std::pair<uint64_t, int>(slice.sequence_id(), 0));
          if (at == index.end() || at->first != slice.sequence_id()) continue;
          placed_.push_back({at->second, r, static_cast<int32_t>(slice.budget_blocks())});
        }
      }
    }
  }

  double TimeMs(const Placed& p) const {
    const int r = std::min(p.rank, problem_.num_ranks() - 1);
    return MsFromNs(problem_.OnRank(r, problem_.TimeNs(p.sequence, p.budget)));
  }

  void Summary() {
    std::string constant;
    if (problem_.predictor().step_constant_ns() > 0) {
      constant = absl::StrFormat(", %.3f ms of it outside the micro-batches",
                                 MsFromNs(problem_.predictor().step_constant_ns()));
    }
    Say("Step %d was planned by the policy `%s`: %d sequences on %d data-parallel ranks of %d "
        "pipeline stages, predicted to take %.3f ms%s.",
        plan_.step(), plan_.policy(), problem_.num_sequences(), plan_.ranks_size(),
        problem_.stages(), plan_.predicted_step_ms(), constant);
  }

  void Fallback() {
    if (plan_.fallback() == v1::FALLBACK_REASON_NONE) return;
    Say("A fallback was used (%s): %s.", v1::FallbackReason_Name(plan_.fallback()),
        plan_.fallback_detail());
  }

  void SlowestRank() {
    if (placed_.empty()) return;
    const v1::RankPlan& rank = plan_.ranks(slowest_);
    const Placed* longest = nullptr;
    int count = 0;
    for (const Placed& p : placed_) {
      if (p.rank != slowest_) continue;
      ++count;
      if (longest == nullptr || TimeMs(p) > TimeMs(*longest)) longest = &p;
    }
    std::string why;
    if (longest != nullptr) {
      const ProblemSequence& s = problem_.sequence(longest->sequence);
      why = absl::StrFormat(
          "; its longest is sequence %d (%d tokens, budget %d of %d blocks) with "
          "%.3f ms a stage",
          s.id, s.tokens, std::min(longest->budget, s.blocks), s.blocks, TimeMs(*longest));
    }
    const double factor =
        static_cast<double>(problem_.rank(slowest_).time_factor) / static_cast<double>(kFixedOne);
    if (std::fabs(factor - 1) > 1e-6) {
      absl::StrAppend(&why, absl::StrFormat("; it runs at %.2f times the model's time", factor));
    }
    Say("The slowest rank is %d with %.3f ms for %d sequences in %d micro-batches%s. The slowest "
        "rank takes %.3f times the mean of all.",
        rank.rank(), rank.predicted_ms(), count, rank.micro_batches_size(), why,
        plan_.rank_imbalance());
  }

  void AgainstLength() {
    const double length = plan_.length_policy_step_ms();
    if (!(length > 0) || plan_.policy() == "length") return;
    const double change = 100 * (1 - plan_.predicted_step_ms() / length);
    if (std::fabs(change) < 0.05) {
      Say("The policy `length` would take the same %.3f ms.", length);
    } else {
      Say("The policy `length` would take %.3f ms: this plan is %.1f %% %s.", length,
          std::fabs(change), change > 0 ? "faster" : "slower");
    }
  }

  void Coverage() {
    Say("Mean coverage is %.4f, against %.4f with every sequence at its base budget.",
        plan_.mean_coverage(), plan_.baseline_mean_coverage());
    struct Loss {
      double lost;
      const Placed* placed;
    };
    std::vector<Loss> losses;
    for (const Placed& p : placed_) {
      const ProblemSequence& s = problem_.sequence(p.sequence);
      const int64_t lost = s.base_coverage - problem_.Coverage(p.sequence, p.budget);
      if (lost > 0) losses.push_back({static_cast<double>(lost) / kFullCoverage, &p});
    }
    if (losses.empty()) return;
    std::sort(losses.begin(), losses.end(), [](const Loss& a, const Loss& b) {
      return a.lost != b.lost ? a.lost > b.lost : a.placed->sequence < b.placed->sequence;
    });
    const size_t count = losses.size();
    losses.resize(std::min(losses.size(), kMostLosers));
    std::vector<std::string> parts;
    parts.reserve(losses.size());
    for (const Loss& loss : losses) {
      const ProblemSequence& s = problem_.sequence(loss.placed->sequence);
      parts.push_back(
          absl::StrFormat("sequence %d (budget %d instead of %d, coverage down by %.4f)", s.id,
                          loss.placed->budget, s.base, loss.lost));
    }
    Say("%d sequences cover less than at their base budget, most of all %s; none keeps less than "
        "%.1f %% of it.",
        count, absl::StrJoin(parts, ", "), 100 * plan_.min_coverage_ratio());
  }

  void Layers() {
    int count = 0;
    uint32_t least = 0;
    uint32_t most = 0;
    for (const v1::RankPlan& rank : plan_.ranks()) {
      for (const v1::MicroBatch& mb : rank.micro_batches()) {
        for (const v1::Slice& slice : mb.slices()) {
          if (slice.layer_budget_blocks().empty()) continue;
          const auto [low, high] = std::minmax_element(slice.layer_budget_blocks().begin(),
                                                       slice.layer_budget_blocks().end());
          least = count == 0 ? *low : std::min(least, *low);
          most = std::max(most, *high);
          ++count;
        }
      }
    }
    if (count == 0) return;
    Say("%d sequences have a budget for every layer, from %d to %d blocks; on each stage they make "
        "no more work than the budget named for the sequence.",
        count, least, most);
  }

  void Exchanges() {
    if (request_.upcoming().empty()) return;
    if (plan_.exchanges().empty()) {
      Say("Looking %d batches ahead found no exchange of sequences that makes steps faster.",
          request_.upcoming_size());
    } else {
      std::vector<std::string> parts;
      for (const v1::SequenceExchange& e : plan_.exchanges()) {
        parts.push_back(absl::StrFormat("%d waits until step %d, %d comes in its place",
                                        e.later_id(), e.later_step(), e.now_id()));
      }
      Say("%d sequences changed places with later batches, which saves %.3f ms over the steps "
          "concerned: %s.",
          plan_.exchanges_size(), plan_.lookahead_saved_ms(), absl::StrJoin(parts, "; "));
    }
    if (plan_.max_displacement_steps() > 0) {
      Say("No sequence of this plan is trained more than %d steps from where the sampler put it.",
          plan_.max_displacement_steps());
    }
  }

  void Gap() {
    if (!(plan_.lower_bound_ms() > 0)) return;
    const double gap = 100 * (plan_.predicted_step_ms() / plan_.lower_bound_ms() - 1);
    Say("No plan within the same constraints takes less than %.3f ms, so this one is at most %.1f "
        "%% from the best.",
        plan_.lower_bound_ms(), gap);
  }

  void Limit() {
    if (placed_.empty() || !(ComputeMs() > 0)) return;
    const Placed& longest =
        *std::max_element(placed_.begin(), placed_.end(), [&](const Placed& a, const Placed& b) {
          return TimeMs(a) != TimeMs(b) ? TimeMs(a) < TimeMs(b) : a.sequence > b.sequence;
        });
    const ProblemSequence& s = problem_.sequence(longest.sequence);
    const double alone = TimeMs(longest) * problem_.stages();
    if (alone >= kDominates * ComputeMs()) {
      Say("Sequence %d with its %d tokens limits the step: alone it takes %.3f of %.3f ms%s. "
          "Shorter sequences in the data%s would help; more ranks would not.",
          s.id, s.tokens, alone, ComputeMs(),
          problem_.stages() > 1 ? " on its way through all stages" : "",
          longest.budget > s.low ? ", or a lower coverage floor,"
                                 : ", or a larger coverage_guard,");
      return;
    }
    if (problem_.stages() > 1) {
      Say("Stages are idle for %.1f %% of the step. More sequences a rank would fill the pipeline "
          "better; the longest is sequence %d with %.3f ms a stage.",
          100 * plan_.bubble_fraction(), s.id, TimeMs(longest));
      return;
    }
    int micro_batches = 0;
    for (const v1::RankPlan& rank : plan_.ranks()) micro_batches += rank.micro_batches_size();
    const double constants = MsFromNs(problem_.predictor().constant_ns()) * micro_batches /
                             std::max(1, plan_.ranks_size());
    if (constants > 0.2 * ComputeMs()) {
      Say("Constants of %d micro-batches are %.1f %% of the step: a larger "
          "max_tokens_per_micro_batch would help.",
          micro_batches, 100 * constants / ComputeMs());
      return;
    }
    Say("The total work of the batch limits the step, not one sequence: more ranks or a lower "
        "coverage floor would make it faster.");
  }

  void Extrapolation() {
    if (plan_.extrapolated_sequences() == 0) return;
    const v1::LatencyModel& m = request_.latency();
    Say("%d sequences are predicted outside the range that latency was measured in (%d to %d "
        "tokens, budgets %d to %d); profile a wider range to trust these figures.",
        plan_.extrapolated_sequences(), m.min_tokens(), m.max_tokens(), m.min_budget_blocks(),
        m.max_budget_blocks());
  }

  const Problem& problem_;
  const v1::PlanRequest& request_;
  const v1::Plan& plan_;
  std::vector<std::string> out_;
  std::vector<Placed> placed_;
  int slowest_ = 0;
};

}  // namespace

std::vector<std::string> Explain(const v1::PlanRequest& request, const v1::Plan& plan) {
  absl::Status status = ValidateRequest(request);
  absl::StatusOr<v1::PlanRequest> trained = AfterExchanges(request, plan.exchanges());
  if (status.ok()) status = trained.status();
  if (status.ok()) {
    absl::StatusOr<Problem> problem = Problem::Create(*trained);
    if (problem.ok() && plan.ranks_size() == problem->num_ranks()) {
      return Explainer(*problem, request, plan).Run();
    }
    status = problem.ok() ? absl::InvalidArgumentError("it has other ranks than the request")
                          : problem.status();
  }
  return {absl::StrCat("The plan cannot be explained: ", std::string(status.message()), ".")};
}

}  // namespace sparsebalance::planner
