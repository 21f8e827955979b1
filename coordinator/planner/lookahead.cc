#include "coordinator/planner/lookahead.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/policies/registry.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {
namespace {

// Exchanges of one plan at most.
constexpr int kMostExchanges = 16;
// Sequences of a batch that are looked at: so many of the longest and of the shortest.
constexpr int kExtremes = 24;
// Exchanges that are planned before the best is taken, by what they promise.
constexpr size_t kTrials = 4;
// An exchange has to win more than one part in so many of a step: plans differ by about as much
// from what a longer search would find.
constexpr int64_t kLeastGain = 200;

// What a step takes, roughly: times of single sequences decide it, or all work together.
struct StepModel {
  int64_t work = 0;     // ns on a rank of factor 1, constants of micro-batches included
  int64_t longest = 0;  // least time of the longest sequence
  int64_t runner_up = 0;
  int64_t shortest = 0;  // fill and drain
};

struct Candidate {
  int64_t promise = 0;  // ns
  int32_t mine = 0;     // index in the first batch
  int32_t batch = 0;
  int32_t theirs = 0;
};

class Window {
 public:
  explicit Window(const v1::PlanRequest& request)
      : reach_(request.settings().lookahead_steps() - 1) {
    batches_.reserve(request.upcoming_size() + 1);
    Batch& own = batches_.emplace_back();
    own.request = request;
    own.request.clear_upcoming();
    own.request.mutable_settings()->set_policy(std::string(kDefaultPolicy));
    for (const v1::UpcomingBatch& upcoming : request.upcoming()) {
      Batch& batch = batches_.emplace_back();
      *batch.request.mutable_settings() = own.request.settings();
      if (request.has_latency()) *batch.request.mutable_latency() = request.latency();
      *batch.request.mutable_rank_factors() = request.rank_factors();
      batch.request.set_step(upcoming.step());
      *batch.request.mutable_sequences() = upcoming.sequences();
    }
    for (Batch& batch : batches_) {
      batch.first = batch.request;
      batch.moved.assign(batch.request.sequences_size(), false);
    }
  }

  absl::StatusOr<Lookahead> Run() {
    for (size_t b = 0; b < batches_.size(); ++b) {
      absl::StatusOr<int64_t> ns = StepNs(batches_[b].request, v1::SEARCH_EFFORT_FAST);
      if (b == 0 && !ns.ok()) return ns.status();
      // A batch that cannot be planned is left to its own step to be refused.
      batches_[b].usable = ns.ok() && Model(batches_[b]);
      if (ns.ok()) batches_[b].step_ns = *ns;
    }
    if (!batches_[0].usable) return Lookahead();
    for (int n = 0; n < kMostExchanges && ExchangeBest(); ++n) {
    }
    return Result();
  }

 private:
  struct Batch {
    v1::PlanRequest first;    // as it came
    v1::PlanRequest request;  // with the exchanges made so far
    bool usable = false;
    int64_t step_ns = 0;
    std::vector<bool> moved;  // [sequence] its place holds another one
    std::vector<int64_t> low_ns,
        base_ns;  // [sequence] at the lowest and base budgets, with constant
    StepModel model;
    std::vector<int32_t> looked_at;
  };

  static absl::StatusOr<int64_t> StepNs(v1::PlanRequest& request, v1::SearchEffort effort) {
    request.mutable_settings()->set_search_effort(effort);
    absl::StatusOr<Problem> problem = Problem::Create(request);
    if (!problem.ok()) return problem.status();
    const absl::StatusOr<LengthPlan> length = MakeLengthPlan(*problem);
    if (!length.ok()) return length.status();
    const absl::StatusOr<Solution> solution = SolveSparseBalance(*problem, *length);
    if (!solution.ok()) return solution.status();
    return Evaluator(*problem).StepNs(solution->batching, solution->budgets);
  }

  // Times of the batch's sequences and its model; false for an empty batch.
  bool Model(Batch& batch) {
    absl::StatusOr<Problem> problem = Problem::Create(batch.request);
    if (!problem.ok() || problem->num_sequences() == 0) return false;
    stages_ = problem->stages();
    Int128 speed = 0;
    int64_t fastest = problem->rank(0).time_factor;
    for (int r = 0; r < problem->num_ranks(); ++r) {
      speed += (Int128{kFixedOne} * kFixedOne) / problem->rank(r).time_factor;
      fastest = std::min(fastest, problem->rank(r).time_factor);
    }
    speed_ = static_cast<int64_t>(speed);
    fastest_ = fastest;
    const int n = problem->num_sequences();
    // With one stage sequences share micro-batches and their constants.
    const int64_t constant = stages_ > 1 ? problem->predictor().constant_ns() : 0;
    batch.low_ns.resize(n);
    batch.base_ns.resize(n);
    for (int in = 0; in < n; ++in) {
      const int32_t i = problem->arrival_order()[in];
      batch.low_ns[in] = constant + problem->TimeNs(i, problem->sequence(i).low);
      batch.base_ns[in] = constant + problem->TimeNs(i, problem->sequence(i).base);
    }
    Remodel(batch);
    return true;
  }

  static void Remodel(Batch& batch) {
    StepModel& m = batch.model;
    m = StepModel();
    m.shortest = batch.base_ns[0];
    for (const int64_t ns : batch.low_ns) {
      if (ns > m.longest) {
        m.runner_up = std::exchange(m.longest, ns);
      } else {
        m.runner_up = std::max(m.runner_up, ns);
      }
    }
    for (const int64_t ns : batch.base_ns) {
      m.work += ns;
      m.shortest = std::min(m.shortest, ns);
    }
    std::vector<int32_t>& order = batch.looked_at;
    order.resize(batch.base_ns.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return batch.base_ns[a] != batch.base_ns[b] ? batch.base_ns[a] < batch.base_ns[b] : a < b;
    });
    if (order.size() > 2 * kExtremes) {
      order.erase(order.begin() + kExtremes, order.end() - kExtremes);
    }
    std::sort(order.begin(), order.end());
  }

  // Of a batch that gives one sequence for another.
  int64_t Promise(const Batch& batch, int32_t gives, int64_t takes_low, int64_t takes_base) const {
    const StepModel& m = batch.model;
    const int64_t rest = batch.low_ns[gives] == m.longest ? m.runner_up : m.longest;
    const int64_t longest = std::max(rest, takes_low);
    const int64_t work = m.work - batch.base_ns[gives] + takes_base;
    return Modelled(longest, work, m.shortest);
  }

  int64_t Modelled(int64_t longest, int64_t work, int64_t shortest) const {
    const auto even = static_cast<int64_t>(Int128{work} * kFixedOne / speed_);
    return std::max(MulFixed(longest, fastest_) * stages_,
                    even + MulFixed(shortest, fastest_) * (stages_ - 1));
  }

  bool MayMove(const Batch& batch, int32_t mine, int32_t theirs) const {
    const Batch& own = batches_[0];
    if (own.moved[mine] || batch.moved[theirs]) return false;
    const uint64_t ahead = batch.request.step() - own.request.step();
    return own.request.sequences(mine).deferred_steps() + ahead <= reach_;
  }

  std::vector<Candidate> Candidates() const {
    std::vector<Candidate> all;
    const Batch& own = batches_[0];
    const int64_t own_now = Modelled(own.model.longest, own.model.work, own.model.shortest);
    for (size_t b = 1; b < batches_.size(); ++b) {
      const Batch& batch = batches_[b];
      if (!batch.usable) continue;
      const int64_t now =
          own_now + Modelled(batch.model.longest, batch.model.work, batch.model.shortest);
      for (const int32_t i : own.looked_at) {
        for (const int32_t j : batch.looked_at) {
          if (!MayMove(batch, i, j)) continue;
          const int64_t promise = now - Promise(own, i, batch.low_ns[j], batch.base_ns[j]) -
                                  Promise(batch, j, own.low_ns[i], own.base_ns[i]);
          if (promise <= LeastGain()) continue;
          all.push_back({promise, i, static_cast<int32_t>(b), j});
        }
      }
    }
    const size_t kept = std::min(kTrials, all.size());
    std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept), all.end(),
                      [](const Candidate& x, const Candidate& y) {
                        if (x.promise != y.promise) return x.promise > y.promise;
                        if (x.batch != y.batch) return x.batch < y.batch;
                        return x.mine != y.mine ? x.mine < y.mine : x.theirs < y.theirs;
                      });
    all.resize(kept);
    return all;
  }

  int64_t LeastGain() const { return batches_[0].step_ns / kLeastGain; }

  void Swap(const Candidate& c) {
    batches_[0].request.mutable_sequences(c.mine)->Swap(
        batches_[c.batch].request.mutable_sequences(c.theirs));
  }

  bool ExchangeBest() {
    std::optional<Candidate> best;
    int64_t best_gain = LeastGain();
    int64_t own_ns = 0;
    int64_t other_ns = 0;
    for (const Candidate& c : Candidates()) {
      Batch& other = batches_[c.batch];
      Swap(c);
      const absl::StatusOr<int64_t> a = StepNs(batches_[0].request, v1::SEARCH_EFFORT_FAST);
      const absl::StatusOr<int64_t> b = StepNs(other.request, v1::SEARCH_EFFORT_FAST);
      Swap(c);
      if (!a.ok() || !b.ok()) continue;
      const int64_t gain = batches_[0].step_ns + other.step_ns - *a - *b;
      if (gain <= best_gain) continue;
      best_gain = gain;
      best = c;
      own_ns = *a;
      other_ns = *b;
    }
    if (!best.has_value()) return false;
    Batch& own = batches_[0];
    Batch& other = batches_[best->batch];
    Swap(*best);
    own.moved[best->mine] = true;
    other.moved[best->theirs] = true;
    std::swap(own.low_ns[best->mine], other.low_ns[best->theirs]);
    std::swap(own.base_ns[best->mine], other.base_ns[best->theirs]);
    own.step_ns = own_ns;
    other.step_ns = other_ns;
    Remodel(own);
    Remodel(other);
    exchanges_.push_back(*best);
    return true;
  }

  // Once more with the search that the job asked for: what is claimed is what plans keep.
  absl::StatusOr<Lookahead> Result() {
    Lookahead result;
    if (exchanges_.empty()) return result;
    const v1::SearchEffort effort = batches_[0].first.settings().search_effort();
    for (Batch& batch : batches_) {
      if (std::find(batch.moved.begin(), batch.moved.end(), true) == batch.moved.end()) continue;
      const absl::StatusOr<int64_t> before = StepNs(batch.first, effort);
      if (!before.ok()) return before.status();
      const absl::StatusOr<int64_t> after = StepNs(batch.request, effort);
      if (!after.ok()) return after.status();
      result.saved_ns += *before - *after;
    }
    if (result.saved_ns <= 0) return Lookahead();
    for (const Candidate& c : exchanges_) {
      v1::SequenceExchange& exchange = result.exchanges.emplace_back();
      const Batch& other = batches_[c.batch];
      exchange.set_now_id(other.first.sequences(c.theirs).id());
      exchange.set_later_id(batches_[0].first.sequences(c.mine).id());
      exchange.set_later_step(other.first.step());
    }
    std::sort(result.exchanges.begin(), result.exchanges.end(),
              [](const v1::SequenceExchange& a, const v1::SequenceExchange& b) {
                return a.later_step() != b.later_step() ? a.later_step() < b.later_step()
                                                        : a.now_id() < b.now_id();
              });
    return result;
  }

  const uint64_t reach_;
  std::vector<Batch> batches_;  // the step's own first
  int stages_ = 1;
  int64_t speed_ = kFixedOne;    // of all ranks together, fixed point
  int64_t fastest_ = kFixedOne;  // least time factor
  std::vector<Candidate> exchanges_;
};

}  // namespace

absl::StatusOr<Lookahead> ChooseExchanges(const v1::PlanRequest& request) {
  if (request.settings().lookahead_steps() < 2 || request.upcoming().empty() ||
      request.sequences().empty()) {
    return Lookahead();
  }
  return Window(request).Run();
}

absl::StatusOr<v1::PlanRequest> AfterExchanges(
    const v1::PlanRequest& request,
    const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges) {
  v1::PlanRequest after = request;
  after.clear_upcoming();
  if (exchanges.empty()) return after;
  absl::flat_hash_map<uint64_t, v1::Sequence*> own;
  for (v1::Sequence& q : *after.mutable_sequences()) own[q.id()] = &q;
  std::map<std::pair<uint64_t, uint64_t>, const v1::Sequence*> upcoming;
  for (const v1::UpcomingBatch& batch : request.upcoming()) {
    for (const v1::Sequence& q : batch.sequences()) upcoming[{batch.step(), q.id()}] = &q;
  }
  for (const v1::SequenceExchange& exchange : exchanges) {
    const auto mine = own.find(exchange.later_id());
    const auto theirs = upcoming.find({exchange.later_step(), exchange.now_id()});
    if (mine == own.end() || theirs == upcoming.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it exchanges sequence ", exchange.later_id(), " for sequence ", exchange.now_id(),
          " of step ", exchange.later_step(), ", and one of them is not there"));
    }
    *mine->second = *theirs->second;
    own.erase(mine);
    upcoming.erase(theirs);
  }
  return after;
}

uint64_t MaxDisplacement(
    const v1::PlanRequest& request,
    const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges) {
  std::map<uint64_t, uint64_t> own;  // deferred steps of what is trained now, by id
  for (const v1::Sequence& q : request.sequences()) own[q.id()] = q.deferred_steps();
  std::map<uint64_t, uint64_t> upcoming;
  for (const v1::UpcomingBatch& batch : request.upcoming()) {
    for (const v1::Sequence& q : batch.sequences()) upcoming[q.id()] = q.deferred_steps();
  }
  uint64_t most = 0;
  for (const v1::SequenceExchange& exchange : exchanges) {
    const uint64_t ahead = exchange.later_step() - request.step();
    most = std::max(most, own[exchange.later_id()] + ahead);
    own.erase(exchange.later_id());
    // Deferred until then, it may have been due before this step.
    const uint64_t deferred = upcoming[exchange.now_id()];
    most = std::max(most, deferred > ahead ? deferred - ahead : ahead - deferred);
  }
  for (const auto& [id, deferred] : own) most = std::max(most, deferred);
  return most;
}

}  // namespace sparsebalance::planner
