#include "coordinator/planner/schedule.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <tuple>

#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/test_jobs.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

ScheduleTimes Uniform(int stages, const std::vector<int64_t>& forward,
                      const std::vector<int64_t>& backward) {
  ScheduleTimes times;
  times.forward.assign(stages, forward);
  times.backward.assign(stages, backward);
  return times;
}

TEST(Schedule, OneStageIsTheSum) {
  EXPECT_EQ(SimulateSchedule(Uniform(1, {1, 2, 3}, {4, 5, 6})).span, 21);
}

TEST(Schedule, EqualMicroBatchesHaveTheTextbookBubble) {
  // (M + P - 1) * (f + b) for M equal micro-batches on P stages.
  const ScheduleResult r =
      SimulateSchedule(Uniform(4, {1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(r.span, 33);
  EXPECT_EQ(r.stage_busy, (std::vector<int64_t>{24, 24, 24, 24}));
  EXPECT_NEAR(r.bubble_fraction, 3.0 / 11, 1e-12);
}

TEST(Schedule, FollowsTheOrderByHand) {
  // Two stages, F = 1, 4 and B = 2, 2:
  //   stage 0: F0 0-1, F1 1-5, B0 5-7, B1 11-13
  //   stage 1: F0 1-2, B0 2-4, F1 5-9, B1 9-11
  EXPECT_EQ(SimulateSchedule(Uniform(2, {1, 4}, {2, 2})).span, 13);
}

TEST(Schedule, FewerMicroBatchesThanStages) {
  EXPECT_EQ(SimulateSchedule(Uniform(4, {3}, {5})).span, 32);
  EXPECT_EQ(SimulateSchedule(Uniform(3, {}, {})).span, 0);
}

TEST(UniformSchedule, AgreesWithTheGeneralSimulation) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const int stages = 1 + static_cast<int>(random() % 6);
    const int64_t share = ToFixed(0.1 + 0.1 * static_cast<double>(random() % 8));
    std::vector<int64_t> all(random() % 12);
    std::vector<int64_t> forward;
    std::vector<int64_t> backward;
    for (int64_t& t : all) {
      t = static_cast<int64_t>(random() % 100'000);
      forward.push_back(MulFixed(t, share));
      backward.push_back(t - forward.back());
    }
    UniformSchedule fast(stages, share);
    EXPECT_EQ(fast.Span(all), SimulateSchedule(Uniform(stages, forward, backward)).span);
  }
}

// Measured forwards and backwards of a production job, step by step.
void ExpectTraceReproduced(const std::string& path) {
  std::ifstream in(path);
  ASSERT_TRUE(in.good()) << path;
  struct Cell {
    double forward_start, forward, backward_start, backward;
  };
  using Key = std::tuple<int, int, int>;  // rank, stage, micro-batch
  std::map<int, std::map<Key, Cell>> steps;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream row(line);
    std::vector<double> v;
    for (std::string field; std::getline(row, field, ',');) v.push_back(std::stod(field));
    ASSERT_EQ(v.size(), 8U);
    steps[static_cast<int>(v[0])][{static_cast<int>(v[1]), static_cast<int>(v[2]),
                                   static_cast<int>(v[3])}] = {v[4], v[5], v[6], v[7]};
  }
  ASSERT_GT(steps.size(), 10U);
  for (const auto& [step, cells] : steps) {
    double first = 1e300;
    double last = 0;
    std::map<int, ScheduleTimes> ranks;
    for (const auto& [key, cell] : cells) {
      const auto [rank, stage, micro_batch] = key;
      first = std::min(first, cell.forward_start);
      last = std::max(last, cell.backward_start + cell.backward);
      ScheduleTimes& times = ranks[rank];
      times.forward.resize(std::max<size_t>(times.forward.size(), stage + 1));
      times.backward.resize(times.forward.size());
      times.forward[stage].push_back(std::llround(cell.forward * 1e6));
      times.backward[stage].push_back(std::llround(cell.backward * 1e6));
    }
    int64_t span = 0;
    for (const auto& [rank, times] : ranks) {
      span = std::max(span, SimulateSchedule(times).span);
    }
    EXPECT_NEAR(MsFromNs(span) / (last - first), 1.0, 0.015) << path << " step " << step;
  }
}

TEST(Schedule, ReproducesEveryStepOfTheProductionTraces) {
  const auto data = SharedData();
  if (!data.has_value()) GTEST_SKIP() << "no ../shared/data beside the source tree";
  ExpectTraceReproduced(*data + "/traces/SE.csv");
  ExpectTraceReproduced(*data + "/traces/ST.csv");
}

}  // namespace
}  // namespace sparsebalance::planner
