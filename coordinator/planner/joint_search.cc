#include "coordinator/planner/joint_search.h"

#include <algorithm>
#include <utility>

namespace sparsebalance::planner {
namespace {

constexpr uint64_t kSeed = 0x9E3779B97F4A7C15;
// Thresholds at the start and at the end, T0 over these.
constexpr int64_t kFirstThreshold = 200;
constexpr int64_t kLastThreshold = 600;
constexpr int64_t kFirstThresholdCold = 600;
constexpr int64_t kLastThresholdCold = 20'000;
// Steps in which the threshold falls, and those at the end in which nothing worse is kept.
constexpr int kCoolings = 64;
constexpr int kGreedyCoolings = 8;
// Coverage that the floor misses costs at first this many times what the batch would pay for it.
constexpr int64_t kPenalty = 2;
// Every so many changes the price rises by an eighth where coverage is missing, and falls by a
// sixteenth where it is not.
constexpr int64_t kPricePeriod = 64;
// Changes between looks for the slowest rank.
constexpr int64_t kSlowestPeriod = 16;
// Batches up to this size get levels between the corners of the envelopes too.
constexpr int kMostSequencesWithAllBudgets = 1024;
constexpr int32_t kWidening = 64;
// A budget changes by up to two to the power of less than this many levels.
constexpr int32_t kReachPowers = 6;
// Kinds of changes out of 16; the rest are swaps.
constexpr int kBudgets = 5;
constexpr int kExchanges = 3;
constexpr int kReorders = 3;
constexpr int kMoves = 2;

}  // namespace

JointSearch::JointSearch(const Problem& problem, const Envelopes& envelopes)
    : problem_(problem), schedule_(problem.stages(), problem.predictor().forward_fraction()) {
  const int n = problem.num_sequences();
  level_begin_.reserve(n + 1);
  for (int i = 0; i < n; ++i) {
    level_begin_.push_back(static_cast<int32_t>(levels_.size()));
    AddLevels(i, envelopes);
  }
  level_begin_.push_back(static_cast<int32_t>(levels_.size()));
  // The price at which the whole batch would reach the floor.
  int64_t coverage = envelopes.lowest_coverage_sum();
  for (const EnvelopeSegment& s : envelopes.BySteepness()) {
    if (coverage >= problem.floor_sum()) break;
    coverage += s.coverage;
    first_price_ = kPenalty * static_cast<int64_t>(Int128{s.time} * kFixedOne / s.coverage);
  }
}

void JointSearch::AddLevels(int32_t i, const Envelopes& envelopes) {
  const ProblemSequence& s = problem_.sequence(i);
  const auto add = [&](int32_t budget) {
    levels_.push_back({budget, problem_.TimeNs(i, budget), problem_.Coverage(i, budget)});
  };
  if (problem_.num_sequences() > kMostSequencesWithAllBudgets) {
    add(s.low);
    for (const EnvelopeSegment& segment : envelopes.Of(i)) add(segment.to);
    return;
  }
  // Not only the corners of the envelope: where one is far from the next, what lies between fills a
  // bubble. Wider steps where budgets are large.
  for (int32_t budget = s.low; budget < s.high; budget += 1 + budget / kWidening) add(budget);
  add(s.high);
}

uint64_t JointSearch::Random() {  // xorshift64*
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return random_ * 0x2545F4914F6CDD1D;
}

int32_t JointSearch::Pick(int32_t bound) {
  return static_cast<int32_t>(((Random() >> 32) * static_cast<uint64_t>(bound)) >> 32);
}

int64_t JointSearch::RandomTail() {
  const uint64_t x = Random() | 1;
  const int zeros = __builtin_clzll(x);
  // Linear between powers of two: the bits after the leading one count down.
  const uint64_t rest = zeros == 63 ? 0 : (x << (zeros + 1)) >> (64 - kFractionBits);
  return (int64_t{zeros} + 1) * kFixedOne - static_cast<int64_t>(rest);
}

int64_t JointSearch::SpanOf(int32_t rank, const std::vector<int64_t>& raw) {
  if (problem_.rank(rank).time_factor == kFixedOne) return schedule_.Span(raw);
  scaled_.resize(raw.size());
  for (size_t m = 0; m < raw.size(); ++m) scaled_[m] = problem_.OnRank(rank, raw[m]);
  return schedule_.Span(scaled_);
}

int64_t JointSearch::CostOf(int64_t span) const {
  // Ranks that take many times T0 are all equally bad.
  const int64_t part = std::min<int64_t>(
      static_cast<int64_t>(Int128{span} * kFixedOne / reference_ns_), 16 * kFixedOne);
  const int64_t square = MulFixed(part, part);
  return static_cast<int64_t>(Int128{square} * square / (4 * kFixedOne) * reference_ns_ /
                              kFixedOne);
}

int64_t JointSearch::Missing(int64_t coverage) const {
  return std::max<int64_t>(0, problem_.floor_sum() - coverage);
}

int64_t JointSearch::PriceOf(int64_t missing) const {
  return static_cast<int64_t>(Int128{missing} * price_ / kFixedOne);
}

bool JointSearch::Keep(int64_t cost_change) {
  if (cost_change <= 0) return true;
  return Int128{cost_change} * kFixedOne < Int128{threshold_} * RandomTail();
}

bool JointSearch::Decide(int32_t rank_a, int32_t rank_b, int64_t coverage_change) {
  const int64_t span_a = SpanOf(rank_a, raw_a_);
  const int64_t cost_a = CostOf(span_a);
  int64_t change = cost_a - ranks_[rank_a].cost;
  int64_t span_b = 0;
  int64_t cost_b = 0;
  if (rank_b >= 0) {
    span_b = SpanOf(rank_b, raw_b_);
    cost_b = CostOf(span_b);
    change += cost_b - ranks_[rank_b].cost;
  }
  if (coverage_change != 0) {
    change += PriceOf(Missing(coverage_ + coverage_change)) - PriceOf(Missing(coverage_));
  }
  if (!Keep(change)) return false;
  coverage_ += coverage_change;
  const auto take = [&](int32_t r, std::vector<int64_t>& raw, int64_t span, int64_t cost) {
    ranks_[r].raw.swap(raw);
    ranks_[r].span = span;
    ranks_[r].cost = cost;
  };
  take(rank_a, raw_a_, span_a, cost_a);
  if (rank_b >= 0) take(rank_b, raw_b_, span_b, cost_b);
  changed_ = true;
  return true;
}

void JointSearch::TryBudget(int32_t i) {
  const int32_t count = LevelCount(i);
  if (count < 2) return;
  int32_t step = 1 + Pick(1 << Pick(kReachPowers));
  if (Random() >> 63 != 0) step = -step;
  const int32_t to = std::clamp(level_[i] + step, 0, count - 1);
  if (to == level_[i]) return;
  const Level& before = LevelOf(i);
  const Level& after = levels_[level_begin_[i] + to];
  const Place at = place_[i];
  raw_a_ = ranks_[at.rank].raw;
  raw_a_[at.micro_batch] += after.time - before.time;
  if (Decide(at.rank, -1, after.coverage - before.coverage)) level_[i] = to;
}

void JointSearch::TryBudgetExchange() {
  const int32_t up = PickSequence();
  const int32_t down = Pick(problem_.num_sequences());
  if (up == down || level_[down] == 0 || level_[up] + 1 == LevelCount(up)) return;
  const int32_t step = 1 + Pick(1 << Pick(kReachPowers));
  const int32_t up_to = std::min(LevelCount(up) - 1, level_[up] + step);
  const Level& up_before = LevelOf(up);
  const Level& up_after = levels_[level_begin_[up] + up_to];
  // As much as is gained may be lost.
  const int64_t gained = up_after.coverage - up_before.coverage;
  const Level& down_before = LevelOf(down);
  int32_t down_to = level_[down] - 1;
  while (down_to > 0 &&
         down_before.coverage - levels_[level_begin_[down] + down_to - 1].coverage <= gained) {
    --down_to;
  }
  const Level& down_after = levels_[level_begin_[down] + down_to];
  const Place a = place_[up];
  const Place b = place_[down];
  raw_a_ = ranks_[a.rank].raw;
  raw_a_[a.micro_batch] += up_after.time - up_before.time;
  const bool same = a.rank == b.rank;
  if (!same) raw_b_ = ranks_[b.rank].raw;
  (same ? raw_a_ : raw_b_)[b.micro_batch] += down_after.time - down_before.time;
  if (!Decide(a.rank, same ? -1 : b.rank, gained + down_after.coverage - down_before.coverage)) {
    return;
  }
  level_[up] = up_to;
  level_[down] = down_to;
}

void JointSearch::TryReorder(int32_t rank) {
  std::vector<MicroBatch>& mbs = ranks_[rank].micro_batches;
  const auto count = static_cast<int32_t>(mbs.size());
  if (count < 2) return;
  const int32_t p = Pick(count);
  const int32_t q = Pick(count);
  if (p == q) return;
  const bool swap = Random() >> 63 != 0;
  const auto apply = [&](auto& list) {
    if (swap) {
      std::swap(list[p], list[q]);
    } else if (p < q) {
      std::rotate(list.begin() + p, list.begin() + p + 1, list.begin() + q + 1);
    } else {
      std::rotate(list.begin() + q, list.begin() + p, list.begin() + p + 1);
    }
  };
  raw_a_ = ranks_[rank].raw;
  apply(raw_a_);
  if (!Decide(rank, -1, 0)) return;
  apply(mbs);
  Renumber(rank);
}

void JointSearch::Renumber(int32_t rank) {
  const std::vector<MicroBatch>& mbs = ranks_[rank].micro_batches;
  for (size_t m = 0; m < mbs.size(); ++m) {
    for (const int32_t i : mbs[m].items) place_[i] = {rank, static_cast<int32_t>(m)};
  }
}

void JointSearch::TryMove(int32_t i) {
  const Place from = place_[i];
  const int64_t tokens = problem_.padded_tokens(i);
  const int64_t time = LevelOf(i).time;
  const bool counted = problem_.fixed_count() > 0;
  const bool alone = ranks_[from.rank].micro_batches[from.micro_batch].items.size() == 1;
  const int32_t to_rank = Pick(problem_.num_ranks());
  const bool same = to_rank == from.rank;
  const auto count = static_cast<int32_t>(ranks_[to_rank].micro_batches.size());
  // A place of its own, or one of the micro-batches there.
  const bool fresh = !counted && (count == 0 || Pick(2) == 0);
  const int32_t to = Pick(fresh ? count + 1 : count);
  if (fresh ? same && alone : same && to == from.micro_batch) return;
  const int64_t constant = problem_.predictor().constant_ns();
  if (tokens + (fresh ? 0 : ranks_[to_rank].micro_batches[to].tokens) >
      problem_.rank(to_rank).cap_tokens) {
    return;
  }
  raw_a_ = ranks_[from.rank].raw;
  if (!same) raw_b_ = ranks_[to_rank].raw;
  std::vector<int64_t>& there = same ? raw_a_ : raw_b_;
  // Where it comes from is emptied first and taken away last, so that indices stay.
  raw_a_[from.micro_batch] = alone ? EmptyNs() : raw_a_[from.micro_batch] - time;
  int32_t emptied = from.micro_batch;
  if (fresh) {
    there.insert(there.begin() + to, constant + time);
    if (same && to <= emptied) ++emptied;
  } else if (ranks_[to_rank].micro_batches[to].items.empty()) {
    there[to] = constant + time;
  } else {
    there[to] += time;
  }
  if (alone && !counted) raw_a_.erase(raw_a_.begin() + emptied);
  if (!Decide(from.rank, same ? -1 : to_rank, 0)) return;

  MicroBatch& old = ranks_[from.rank].micro_batches[from.micro_batch];
  old.items.erase(std::find(old.items.begin(), old.items.end(), i));
  old.tokens -= tokens;
  std::vector<MicroBatch>& mbs = ranks_[to_rank].micro_batches;
  if (fresh) mbs.insert(mbs.begin() + to, MicroBatch());
  mbs[to].items.push_back(i);
  mbs[to].tokens += tokens;
  if (alone && !counted) {
    std::vector<MicroBatch>& left = ranks_[from.rank].micro_batches;
    left.erase(left.begin() + emptied);
  }
  Renumber(from.rank);
  if (!same) Renumber(to_rank);
}

void JointSearch::TrySwap(int32_t i, int32_t j) {
  const Place a = place_[i];
  const Place b = place_[j];
  if (a.rank == b.rank && a.micro_batch == b.micro_batch) return;
  const int64_t time = LevelOf(j).time - LevelOf(i).time;
  const int64_t tokens = problem_.padded_tokens(j) - problem_.padded_tokens(i);
  MicroBatch& at_a = ranks_[a.rank].micro_batches[a.micro_batch];
  MicroBatch& at_b = ranks_[b.rank].micro_batches[b.micro_batch];
  if (at_a.tokens + tokens > problem_.rank(a.rank).cap_tokens ||
      at_b.tokens - tokens > problem_.rank(b.rank).cap_tokens) {
    return;
  }
  const bool same = a.rank == b.rank;
  raw_a_ = ranks_[a.rank].raw;
  if (!same) raw_b_ = ranks_[b.rank].raw;
  raw_a_[a.micro_batch] += time;
  (same ? raw_a_ : raw_b_)[b.micro_batch] -= time;
  if (!Decide(a.rank, same ? -1 : b.rank, 0)) return;
  *std::find(at_a.items.begin(), at_a.items.end(), i) = j;
  *std::find(at_b.items.begin(), at_b.items.end(), j) = i;
  at_a.tokens += tokens;
  at_b.tokens -= tokens;
  std::swap(place_[i], place_[j]);
}

int32_t JointSearch::PickSequence() {
  // Half of the time one of the slowest rank, where most is to be gained.
  const std::vector<MicroBatch>& slow = ranks_[slowest_].micro_batches;
  if (Random() >> 63 != 0 && !slow.empty()) {
    const MicroBatchItems& items = slow[Pick(static_cast<int32_t>(slow.size()))].items;
    if (!items.empty()) return items[Pick(static_cast<int32_t>(items.size()))];
  }
  return Pick(problem_.num_sequences());
}

void JointSearch::Load(const Batching& batching, const std::vector<int32_t>& budgets) {
  const int n = problem_.num_sequences();
  level_.assign(n, 0);
  place_.assign(n, {});
  coverage_ = 0;
  for (int i = 0; i < n; ++i) {
    while (level_[i] + 1 < LevelCount(i) &&
           levels_[level_begin_[i] + level_[i] + 1].budget <= budgets[i]) {
      ++level_[i];
    }
    coverage_ += LevelOf(i).coverage;
  }
  ranks_.assign(batching.size(), {});
  reference_ns_ = 1;
  for (size_t r = 0; r < batching.size(); ++r) {
    Rank& rank = ranks_[r];
    for (const MicroBatchItems& items : batching[r]) {
      MicroBatch& mb = rank.micro_batches.emplace_back();
      mb.items = items;
      int64_t raw = items.empty() ? EmptyNs() : problem_.predictor().constant_ns();
      for (const int32_t i : items) {
        raw += LevelOf(i).time;
        mb.tokens += problem_.padded_tokens(i);
      }
      rank.raw.push_back(raw);
    }
    Renumber(static_cast<int32_t>(r));
    rank.span = SpanOf(static_cast<int32_t>(r), rank.raw);
    reference_ns_ = std::max(reference_ns_, rank.span);
  }
  for (Rank& rank : ranks_) rank.cost = CostOf(rank.span);
}

void JointSearch::Store(const Snapshot& snapshot, Batching& batching,
                        std::vector<int32_t>& budgets) const {
  batching.assign(snapshot.ranks.size(), {});
  for (size_t r = 0; r < snapshot.ranks.size(); ++r) {
    for (const MicroBatch& mb : snapshot.ranks[r].micro_batches) batching[r].push_back(mb.items);
  }
  for (size_t i = 0; i < budgets.size(); ++i) {
    budgets[i] = levels_[level_begin_[i] + snapshot.level[i]].budget;
  }
}

void JointSearch::Remember() {
  changed_ = false;
  if (coverage_ < problem_.floor_sum()) return;
  int64_t step = 0;
  for (const Rank& rank : ranks_) step = std::max(step, rank.span);
  if (found_ && (step > best_.step_ns || (step == best_.step_ns && coverage_ <= best_.coverage))) {
    return;
  }
  found_ = true;
  best_ = {step, coverage_, ranks_, level_};
}

void JointSearch::FindSlowest() {
  slowest_ = 0;
  for (int32_t r = 1; r < problem_.num_ranks(); ++r) {
    if (ranks_[r].span > ranks_[slowest_].span) slowest_ = r;
  }
}

bool JointSearch::Improve(int64_t tries, Heat heat, Batching& batching,
                          std::vector<int32_t>& budgets) {
  const int32_t n = problem_.num_sequences();
  if (n == 0 || problem_.num_ranks() == 0) return false;
  Load(batching, budgets);
  price_ = first_price_;
  found_ = false;
  Remember();
  random_ = kSeed;
  const bool cold = heat == Heat::kCold;
  const int64_t first = reference_ns_ / (cold ? kFirstThresholdCold : kFirstThreshold);
  const int64_t last = reference_ns_ / (cold ? kLastThresholdCold : kLastThreshold);
  for (int c = 0; c < kCoolings; ++c) {
    // Falls like a hyperbola, which needs no power.
    threshold_ = static_cast<int64_t>(
        Int128{first} * last * kCoolings /
        std::max<int64_t>(1, int64_t{last} * (kCoolings - c) + int64_t{first} * c));
    if (c >= kCoolings - kGreedyCoolings) threshold_ = 0;
    for (int64_t t = tries * c / kCoolings; t < tries * (c + 1) / kCoolings; ++t) {
      if (t % kPricePeriod == 0) {
        price_ += coverage_ < problem_.floor_sum() ? price_ / 8 + 1 : -(price_ / 16);
      }
      if (t % kSlowestPeriod == 0) FindSlowest();
      const int32_t kind = Pick(16);
      if (kind < kBudgets) {
        TryBudget(PickSequence());
      } else if (kind < kBudgets + kExchanges) {
        TryBudgetExchange();
      } else if (kind < kBudgets + kExchanges + kReorders && problem_.stages() > 1) {
        TryReorder(place_[PickSequence()].rank);
      } else if (kind < kBudgets + kExchanges + kReorders + kMoves) {
        TryMove(PickSequence());
      } else {
        TrySwap(PickSequence(), Pick(n));
      }
      if (changed_) Remember();
    }
  }
  if (found_) Store(best_, batching, budgets);
  return found_;
}

}  // namespace sparsebalance::planner
