// Batching and budgets, each made for the other.
//
// Construction: budgets at one price of time for the whole batch, a batching by the times that they
// give, and the best budgets for that batching; with one stage, ranks are evened out by exchanges
// in between. Then a search that changes batching, order and budgets together (joint_search.h), and
// once more the best budgets for what it found; small batches with more stages are searched from
// several starts, the plans of `paper` and `length` among them. The fastest plan that was seen
// wins; a plan of `length` that is faster by the same model wins over it.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "coordinator/planner/batching.h"
#include "coordinator/planner/budgets.h"
#include "coordinator/planner/envelope.h"
#include "coordinator/planner/joint_search.h"
#include "coordinator/planner/packing.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {
namespace {

// One stage: changes for a small batch, by how much they get fewer with every sequence, and with
// high effort.
constexpr int64_t kSerialTries = 12'000;
constexpr int64_t kSerialTriesLost = 40;
constexpr int64_t kSerialTriesHigh = 800'000;
// More stages: visits of micro-batches by stages, in all and more with every sequence.
constexpr int64_t kScheduledWork = 3'200'000;
constexpr int64_t kScheduledWorkMore = 5'000;
constexpr int64_t kHighEffort = 26;
// Larger batches would need more changes than there is time for: measured, it finds nothing there.
constexpr int64_t kMostSequencesSearched = 1024;
// Of the changes, so many parts go to each of the starts; the rest to the best plan so far.
constexpr int64_t kParts = 5;
// In larger batches the start matters less than the changes that it gets.
constexpr int kMostSequencesOfManyStarts = 128;

struct Best {
  bool found = false;
  int64_t step_ns = 0;
  int64_t coverage_sum = 0;
  Solution solution;

  // Least time, then most coverage; the earlier of two equals.
  bool Takes(int64_t ns, int64_t coverage) {
    if (found && (ns > step_ns || (ns == step_ns && coverage <= coverage_sum))) return false;
    found = true;
    step_ns = ns;
    coverage_sum = coverage;
    return true;
  }
};

class Planner {
 public:
  Planner(const Problem& problem, const Envelopes& envelopes)
      : problem_(problem), envelopes_(envelopes), optimizer_(problem, envelopes) {}

  // The best budgets for a batching.
  void OfferBudgetsFor(Batching batching) {
    if (envelopes_.BySteepness().empty()) {
      // No budget gains anything: all stay at their lowest.
      std::vector<int32_t> lowest(problem_.num_sequences());
      for (int i = 0; i < problem_.num_sequences(); ++i) lowest[i] = problem_.sequence(i).low;
      Offer(std::move(batching), std::move(lowest));
      return;
    }
    BudgetResult result = optimizer_.Optimize(batching);
    if (result.reached && best_.Takes(result.step_ns, result.coverage_sum)) {
      Keep(std::move(batching), std::move(result.budgets));
    }
  }

  absl::Status OfferConstruction(const std::vector<int32_t>& budgets) {
    auto built = BuildBatching(problem_, budgets);
    if (!built.ok()) return built.status();
    if (problem_.stages() == 1) BalanceRanks(problem_, budgets, *built);
    OfferBudgetsFor(*std::move(built));
    return absl::OkStatus();
  }

  void SearchFromBest(int64_t tries) {
    if (!best_.found || tries == 0) return;
    SearchFrom(best_.solution.batching, best_.solution.budgets, tries, JointSearch::Heat::kCold);
  }

  void SearchFrom(Batching batching, std::vector<int32_t> budgets, int64_t tries,
                  JointSearch::Heat heat) {
    // Equal but free counts are settled after the search.
    if (problem_.equal_count() && problem_.fixed_count() == 0) {
      for (RankItems& rank : batching) {
        rank.erase(
            std::remove_if(rank.begin(), rank.end(), [](const auto& mb) { return mb.empty(); }),
            rank.end());
      }
    }
    if (!JointSearch(problem_, envelopes_).Improve(tries, heat, batching, budgets)) return;
    FinishCounts(problem_, batching);
    Offer(batching, std::move(budgets));
    OfferBudgetsFor(std::move(batching));
  }

  // As it is, where it keeps the floor.
  void Offer(Batching batching, std::vector<int32_t> budgets) {
    const int64_t coverage = CoverageSum(problem_, budgets);
    if (coverage < problem_.floor_sum()) return;
    if (best_.Takes(Evaluator(problem_).StepNs(batching, budgets), coverage)) {
      Keep(std::move(batching), std::move(budgets));
    }
  }

  Best& best() { return best_; }

 private:
  void Keep(Batching batching, std::vector<int32_t> budgets) {
    best_.solution.batching = std::move(batching);
    best_.solution.budgets = std::move(budgets);
  }

  const Problem& problem_;
  const Envelopes& envelopes_;
  BudgetOptimizer optimizer_;
  Best best_;
};

// Changes that the joint search looks at. One change costs about as much as the walk through the
// schedules of two ranks; a larger batch gets more of them, but not in proportion.
int64_t Tries(const Problem& problem) {
  const int64_t n = problem.num_sequences();
  const bool high = problem.search_effort() == v1::SEARCH_EFFORT_HIGH;
  if (problem.search_effort() == v1::SEARCH_EFFORT_FAST) return 0;
  if (problem.stages() == 1) {
    // Where a rank has many sequences, exchanges leave nothing to be found.
    return high ? kSerialTriesHigh : std::max<int64_t>(0, kSerialTries - kSerialTriesLost * n);
  }
  if (n > kMostSequencesSearched) return 0;
  const int64_t a_rank = n / problem.num_ranks() + 1;
  const int64_t work = kScheduledWork + kScheduledWorkMore * n;
  return (high ? kHighEffort : 1) * work / (2 * a_rank * problem.stages() + 20);
}

absl::StatusOr<Solution> FloorUnreachable(const Problem& problem, const Envelopes& envelopes,
                                          const Solution& length, int64_t length_ns) {
  Solution solution;
  solution.budgets = problem.BaseBudgets();
  auto built = BuildBatching(problem, solution.budgets);
  if (!built.ok()) return built.status();
  solution.batching = *std::move(built);
  if (problem.stages() == 1) BalanceRanks(problem, solution.budgets, solution.batching);
  if (length_ns < Evaluator(problem).StepNs(solution.batching, solution.budgets)) solution = length;
  solution.fallback = v1::FALLBACK_REASON_FLOOR_UNREACHABLE;
  const double n = static_cast<double>(problem.num_sequences()) * kFullCoverage;
  solution.fallback_detail = absl::StrFormat(
      "the floor asks for a mean coverage of %.4f but the highest budgets allowed give %.4f; base "
      "budgets are used, raise max_budget_blocks or lower the floor",
      static_cast<double>(problem.floor_sum()) / n,
      static_cast<double>(envelopes.highest_coverage_sum()) / n);
  return solution;
}

}  // namespace

absl::StatusOr<Solution> SolveSparseBalance(const Problem& problem, const LengthPlan& measure) {
  const Solution& length = measure.solution;
  const int64_t length_ns = measure.step_ns;
  if (problem.num_sequences() == 0) return length;

  const Envelopes envelopes(problem);
  if (envelopes.highest_coverage_sum() < problem.floor_sum()) {
    return FloorUnreachable(problem, envelopes, length, length_ns);
  }

  Planner planner(problem, envelopes);
  const std::vector<int32_t> priced = PricedBudgets(problem, envelopes);
  if (auto s = planner.OfferConstruction(priced); !s.ok()) return s;
  const int64_t tries = Tries(problem);
  const bool many_starts = tries > 0 && problem.num_sequences() <= kMostSequencesOfManyStarts;
  std::optional<Solution> paper;
  if (many_starts) {
    // Not slower than the policy of the paper either, where that keeps the floor.
    if (auto solved = SolvePaper(problem); solved.ok()) paper = *std::move(solved);
  }
  if (paper.has_value()) {
    planner.Offer(paper->batching, paper->budgets);
    planner.OfferBudgetsFor(paper->batching);
  }
  if (problem.stages() == 1) {
    planner.SearchFromBest(tries);
  } else {
    // Where one sequence decides the step, coverage is plenty and the rest is best batched lean.
    std::vector<int32_t> lowest(problem.num_sequences());
    for (int i = 0; i < problem.num_sequences(); ++i) lowest[i] = problem.sequence(i).low;
    if (auto s = planner.OfferConstruction(lowest); !s.ok()) return s;
    planner.OfferBudgetsFor(length.batching);
    int64_t left = tries;
    if (many_starts) {
      using Heat = JointSearch::Heat;
      const auto search = [&](Batching batching, const std::vector<int32_t>& budgets, Heat heat) {
        planner.SearchFrom(std::move(batching), budgets, tries / kParts, heat);
        left -= tries / kParts;
      };
      for (const std::vector<int32_t>& budgets : {priced, lowest}) {
        auto built = BuildBatching(problem, budgets);
        if (!built.ok()) return built.status();
        search(*std::move(built), budgets, Heat::kHot);
      }
      // Near enough to what is known to be good to repair a floor that it hardly misses.
      if (paper.has_value()) search(paper->batching, paper->budgets, Heat::kCold);
      search(length.batching, priced, Heat::kHot);
    }
    planner.SearchFromBest(left);
  }

  Best& best = planner.best();
  const bool may_be_slower = problem.floor_sum() > problem.base_coverage_sum();
  if (!best.found || (!may_be_slower && length_ns < best.step_ns)) {
    Solution fallback = length;
    fallback.fallback = v1::FALLBACK_REASON_LENGTH_BETTER;
    fallback.fallback_detail = absl::StrFormat(
        "the plan of `length` takes %.3f ms by the same model, the best plan found %.3f ms",
        MsFromNs(length_ns), MsFromNs(best.step_ns));
    return fallback;
  }
  return std::move(best.solution);
}

}  // namespace sparsebalance::planner
