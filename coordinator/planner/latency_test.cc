// The closed form and the fit.

#include <string>
#include <vector>

#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_fit.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/status_payload.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

v1::LatencyModel Model(double c0, double c1, double c2, double c3) {
  v1::LatencyModel model;
  model.set_constant_ms(c0);
  model.set_per_token_ms(c1);
  model.set_per_pair_ms(c2);
  model.set_router_ms_per_token_block(c3);
  model.set_forward_fraction(0.3);
  return model;
}

double Predicted(const v1::LatencyModel& model, uint64_t tokens, uint32_t budget, uint32_t block) {
  const LatencyPredictor predictor(model, block);
  const auto blocks = static_cast<int64_t>(BlocksOf(tokens, block));
  return MsFromNs(predictor.constant_ns() +
                  predictor.SequenceNs(static_cast<int64_t>(tokens), blocks, budget));
}

TEST(BlockPairs, CountsWhatEachBlockAttendsTo) {
  EXPECT_EQ(BlockPairs(1, 1), 1);
  EXPECT_EQ(BlockPairs(5, 1), 5);
  EXPECT_EQ(BlockPairs(5, 3), 1 + 2 + 3 + 3 + 3);
  EXPECT_EQ(BlockPairs(5, 5), 15);
  EXPECT_EQ(BlockPairs(5, 9), 15);
}

TEST(LatencyPredictor, IsTheClosedForm) {
  // 10 blocks of 100 tokens, budget 2: pairs = 1 + 9 * 2 = 19.
  const double ms = Predicted(Model(1.5, 0.002, 3e-6, 1e-4), 1000, 2, 100);
  EXPECT_NEAR(ms, 1.5 + 2.0 + 3e-6 * 1e4 * 19 + 1e-4 * 1000 * 10, 1e-5);
}

TEST(LatencyPredictor, NeverFallsWithTheBudgetOrTheLength) {
  const LatencyPredictor p(Model(0.1, 1e-4, 1e-9, 1e-7), 16);
  for (int64_t n = 1; n < 2000; n += 37) {
    const int64_t blocks = (n + 15) / 16;
    for (int64_t k = 1; k < blocks; ++k) {
      EXPECT_LE(p.SequenceNs(n, blocks, k), p.SequenceNs(n, blocks, k + 1));
    }
    EXPECT_LT(p.SequenceNs(n, blocks, 3), p.SequenceNs(n + 37, (n + 37 + 15) / 16, 3));
  }
}

TEST(LatencyPredictor, KeepsSmallCoefficients) {
  // A hundredth of a nanosecond a pair still adds up over a million pairs.
  const LatencyPredictor p(Model(0, 0, 1e-8, 0), 1);
  EXPECT_NEAR(static_cast<double>(p.SequenceNs(1'000'000, 1'000'000, 1)), 1e4, 2);
}

TEST(LatencyPredictor, SaysWhatIsOutsideItsMeasurements) {
  v1::LatencyModel model = Model(1, 1, 1, 1);
  EXPECT_FALSE(LatencyPredictor(model, 64).IsExtrapolation(1'000'000, 999));
  model.set_min_tokens(100);
  model.set_max_tokens(1000);
  model.set_min_budget_blocks(2);
  model.set_max_budget_blocks(8);
  model.set_block_tokens(64);
  const LatencyPredictor p(model, 64);
  EXPECT_FALSE(p.IsExtrapolation(100, 2));
  EXPECT_FALSE(p.IsExtrapolation(1000, 8));
  EXPECT_TRUE(p.IsExtrapolation(99, 4));
  EXPECT_TRUE(p.IsExtrapolation(1001, 4));
  EXPECT_TRUE(p.IsExtrapolation(500, 1));
  EXPECT_TRUE(p.IsExtrapolation(500, 9));
  EXPECT_TRUE(LatencyPredictor(model, 32).IsExtrapolation(500, 4));
}

std::vector<v1::ProfilePoint> Points(const v1::LatencyModel& model, uint32_t block, double noise) {
  std::vector<v1::ProfilePoint> points;
  double sign = 1;
  for (uint64_t n = block; n <= 64 * block; n *= 2) {
    for (const uint32_t k : {1U, 2U, 4U, 8U, 64U}) {
      v1::ProfilePoint& p = points.emplace_back();
      p.set_tokens(n);
      p.set_budget_blocks(k);
      const double ms = Predicted(model, n, k, block) * (1 + sign * noise);
      sign = -sign;
      p.set_forward_ms(0.3 * ms);
      p.set_backward_ms(0.7 * ms);
    }
  }
  return points;
}

TEST(FitLatency, FindsTheModelBehindExactPoints) {
  const v1::LatencyModel truth = Model(0.8, 0.003, 4e-6, 2e-5);
  const auto fit = FitLatency(Points(truth, 32, 0), 32);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.constant_ms(), 0.8, 1e-3);
  EXPECT_NEAR(fit->model.per_token_ms(), 0.003, 1e-5);
  EXPECT_NEAR(fit->model.per_pair_ms(), 4e-6, 1e-8);
  EXPECT_NEAR(fit->model.router_ms_per_token_block(), 2e-5, 1e-7);
  EXPECT_NEAR(fit->model.forward_fraction(), 0.3, 1e-9);
  EXPECT_LT(fit->mean_relative_error, 1e-3);
  EXPECT_EQ(fit->model.min_tokens(), 32U);
  EXPECT_EQ(fit->model.max_tokens(), 2048U);
  EXPECT_EQ(fit->model.min_budget_blocks(), 1U);
  EXPECT_EQ(fit->model.max_budget_blocks(), 64U);
  EXPECT_EQ(fit->model.block_tokens(), 32U);
}

TEST(FitLatency, StaysNonNegativeWhereTheBestFitWouldNot) {
  // Times that grow slower than linearly pull the quadratic term below zero.
  std::vector<v1::ProfilePoint> points;
  for (uint64_t n = 64; n <= 4096; n *= 2) {
    v1::ProfilePoint& p = points.emplace_back();
    p.set_tokens(n);
    p.set_budget_blocks(1000);
    p.set_forward_ms(static_cast<double>(n) / (1 + static_cast<double>(n) / 4096));
    p.set_backward_ms(1);
  }
  const auto fit = FitLatency(points, 64);
  ASSERT_TRUE(fit.ok());
  EXPECT_GE(fit->model.constant_ms(), 0);
  EXPECT_GT(fit->model.per_token_ms(), 0);
  EXPECT_EQ(fit->model.per_pair_ms(), 0);
  EXPECT_EQ(fit->model.router_ms_per_token_block(), 0);
}

TEST(FitLatency, ErrorIsThatOfTheNoise) {
  const auto fit = FitLatency(Points(Model(0.8, 0.003, 4e-6, 2e-5), 32, 0.05), 32);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->mean_relative_error, 0.05, 0.01);
}

TEST(FitLatency, RefusesPointsThatAreNone) {
  EXPECT_FALSE(FitLatency({}, 32).ok());
  std::vector<v1::ProfilePoint> points(1);
  points[0].set_tokens(5);
  points[0].set_budget_blocks(1);
  const absl::Status status = FitLatency(points, 32).status();
  const auto detail = GetDetail<v1::FieldViolation>(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->field(), "points[0]");
}

}  // namespace
}  // namespace sparsebalance::planner
