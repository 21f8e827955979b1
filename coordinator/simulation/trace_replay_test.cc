#include "coordinator/simulation/trace_replay.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/schedule.h"
#include "coordinator/planner/test_jobs.h"
#include "coordinator/simulation/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::simulation {
namespace {

using testing::HasSubstr;

constexpr char kHeader[] =
    "step,dp_rank,stage,micro_batch,forward_start_ms,forward_ms,backward_start_ms,backward_ms\n";

class TraceReplay : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::string Write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }

  // A trace of 20 steps on 4 ranks and 3 stages of 6 micro-batches. `size` is a micro-batch's own
  // (step, rank, micro-batch), `slowness` that of a (rank, stage).
  TraceReport Replay(const std::function<double(Random&)>& size,
                     const std::function<double(int, int)>& slowness) {
    Random random(7);
    std::string text = kHeader;
    for (int step = 0; step < 20; ++step) {
      for (int r = 0; r < 4; ++r) {
        std::vector<double> sizes(6);
        for (double& s : sizes) s = size(random);
        for (int s = 0; s < 3; ++s) {
          double clock = 10.0 * s;
          for (int m = 0; m < 6; ++m) {
            // Noise of 2 %, as measured durations have.
            const double ms = sizes[m] * slowness(r, s) * random.Between(0.98, 1.02);
            absl::StrAppend(&text, step, ",", r, ",", s, ",", m, ",", clock, ",", ms / 3, ",",
                            clock + 100, ",", 2 * ms / 3, "\n");
            clock += ms;
          }
        }
      }
    }
    const auto report = ReplayTrace(Write(text));
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(TraceReport{});
  }

  const std::string path_ =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("sb_trace_", ::getpid(), ".csv");
};

double Even(Random&) { return 30; }
double Uneven(Random& random) { return random.Unit() < 0.8 ? 15 : 90; }

TEST_F(TraceReplay, ABalancedRunHasNoCause) {
  const TraceReport report = Replay(Even, [](int, int) { return 1.0; });
  EXPECT_EQ(report.cause, Cause::kNone);
  EXPECT_TRUE(report.slow_ranks.empty());
  EXPECT_TRUE(report.slow_stages.empty());
  EXPECT_NEAR(report.imbalance_mean, 1.0, 0.02);
  EXPECT_NEAR(report.balanced_ms_mean / report.predicted_ms_mean, 1.0, 0.03);
}

TEST_F(TraceReplay, ASlowRankIsNamedWithItsFactor) {
  const TraceReport report = Replay(Even, [](int r, int) { return r == 2 ? 1.4 : 1.0; });
  EXPECT_EQ(report.cause, Cause::kSlowRank);
  ASSERT_EQ(report.slow_ranks.size(), 1U);
  EXPECT_EQ(report.slow_ranks[0].index, 2U);
  EXPECT_NEAR(report.slow_ranks[0].factor, 1.4, 0.03);
  EXPECT_TRUE(report.slow_stages.empty());
}

TEST_F(TraceReplay, ASlowStageIsNamedWithItsFactor) {
  const TraceReport report = Replay(Even, [](int, int s) { return s == 1 ? 1.5 : 1.0; });
  EXPECT_EQ(report.cause, Cause::kSlowStage);
  ASSERT_EQ(report.slow_stages.size(), 1U);
  EXPECT_EQ(report.slow_stages[0].index, 1U);
  EXPECT_NEAR(report.slow_stages[0].factor, 1.5, 0.03);
  EXPECT_TRUE(report.slow_ranks.empty());
}

TEST_F(TraceReplay, UnevenSequencesAreNoSlowRank) {
  const TraceReport report = Replay(Uneven, [](int, int) { return 1.0; });
  EXPECT_EQ(report.cause, Cause::kUnevenSequences);
  EXPECT_TRUE(report.slow_ranks.empty());
  EXPECT_TRUE(report.slow_stages.empty());
  EXPECT_GT(report.imbalance_mean, 1.1);
  EXPECT_LT(report.balanced_ms_mean, 0.85 * report.predicted_ms_mean);
}

TEST_F(TraceReplay, OneOutlierIsNoCause) {
  Random outlier(1);
  int calls = 0;
  const TraceReport report =
      Replay([&](Random&) { return ++calls == 40 ? 300.0 : 30.0; }, [](int, int) { return 1.0; });
  EXPECT_TRUE(report.slow_ranks.empty());
}

TEST_F(TraceReplay, AWrongTraceIsNamedByLine) {
  struct Case {
    std::string text;
    const char* message;
  };
  for (const Case& c : {
           Case{"a,b\n1,2\n", ":1: expected the header step,dp_rank"},
           Case{absl::StrCat(kHeader, "0,0,0,0,0,5,9,abc\n"), ":2: column 8 (backward_ms)"},
           Case{absl::StrCat(kHeader, "0,0,0,0,0,-5,9,5\n"), ":2: forward_ms is -5"},
           Case{absl::StrCat(kHeader, "0,0.5,0,0,0,5,9,5\n"), ":2: dp_rank is 0.5"},
           Case{absl::StrCat(kHeader, "0,0,0,0,0,5,9,5\n0,0,0,0,0,5,9,5\n"), ":3: the micro-batch"},
           Case{absl::StrCat(kHeader, "0,0,0,1,0,5,9,5\n"), "lacks micro-batch 0"},
           Case{absl::StrCat(kHeader, "0,1,0,0,0,5,9,5\n"), "numbered from 0 without gaps"},
           Case{absl::StrCat(kHeader, "0,0,0,0,0,5,9,5\n0,1,1,0,0,5,9,5\n"), "stage"},
           Case{kHeader, "holds no line of numbers"},
       }) {
    const auto report = ReplayTrace(Write(c.text));
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(c.message));
  }
}

TEST_F(TraceReplay, ProductionTracesAreReproducedAndTheirTroubleIsFound) {
  const auto data = planner::SharedData();
  if (!data.has_value()) GTEST_SKIP() << "no ../shared/data beside the source tree";
  const auto uneven = ReplayTrace(*data + "/traces/SE.csv");
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_EQ(uneven->steps, 45U);
  EXPECT_EQ(uneven->ranks, 32U);
  EXPECT_LT(uneven->error_max_abs, 0.015);
  EXPECT_EQ(uneven->cause, Cause::kUnevenSequences);
  const auto small = ReplayTrace(*data + "/traces/ST.csv");
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_LT(small->error_max_abs, 0.004);
  EXPECT_LT(small->imbalance_mean, 1.01);
  EXPECT_TRUE(small->slow_ranks.empty());
}

}  // namespace
}  // namespace sparsebalance::simulation
