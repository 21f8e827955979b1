#include "coordinator/planner/latency_estimator.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_model.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

constexpr uint32_t kBlock = 32;

// A machine whose true model is known, with noise on every micro-batch.
class Machine {
 public:
  Machine(uint32_t ranks, double noise) : ranks_(ranks), noise_(noise) {
    truth_.set_constant_ms(0.6);
    truth_.set_per_token_ms(0.004);
    truth_.set_per_pair_ms(6e-6);
    truth_.set_router_ms_per_token_block(1e-5);
    truth_.set_forward_fraction(0.3);
    slowness_.assign(ranks, 1.0);
  }

  EstimatorOptions Options() const {
    EstimatorOptions options;
    options.block_tokens = kBlock;
    options.parallelism.set_data(ranks_);
    return options;
  }

  struct Step {
    std::vector<v1::RankTelemetry> ranks;
    double step_ms = 0;
  };

  Step Run(uint64_t step) {
    Step out;
    double slowest = 0;
    const LatencyPredictor predictor(truth_, kBlock);
    for (uint32_t r = 0; r < ranks_; ++r) {
      v1::RankTelemetry& t = out.ranks.emplace_back();
      t.set_rank(r);
      t.set_step(step);
      double compute = 0;
      for (int m = 0; m < 3; ++m) {
        v1::MicroBatchTelemetry& mb = *t.add_micro_batches();
        int64_t ns = predictor.constant_ns();
        for (int q = 0; q < 2; ++q) {
          v1::SequenceTelemetry& s = *mb.add_sequences();
          s.set_tokens(100 + random_() % 3000);
          const auto blocks = static_cast<int64_t>(BlocksOf(s.tokens(), kBlock));
          const auto budget = static_cast<uint32_t>(1 + random_() % 20);
          s.set_planned_budget_blocks(budget);
          s.add_realized_budget_blocks(budget);
          s.add_realized_budget_blocks(budget + 2);
          ns += (predictor.SequenceNs(static_cast<int64_t>(s.tokens()), blocks, budget) +
                 predictor.SequenceNs(static_cast<int64_t>(s.tokens()), blocks, budget + 2)) /
                2;
        }
        const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
        const double ms = MsFromNs(ns) * slowness_[r] * (1 + noise_ * (2 * unit - 1));
        mb.set_forward_ms(0.3 * ms);
        mb.set_backward_ms(0.7 * ms);
        compute += ms;
      }
      t.set_compute_ms(compute);
      slowest = std::max(slowest, compute);
    }
    out.step_ms = slowest + constant_ms;
    for (v1::RankTelemetry& t : out.ranks) t.set_step_ms(out.step_ms);
    return out;
  }

  static void Report(const Step& step, LatencyEstimator& estimator) {
    for (const v1::RankTelemetry& t : step.ranks) estimator.Observe(t);
  }

  // What the estimator says of a step, from the budgets that were used.
  static double Predict(const LatencyEstimator& estimator, const Step& step) {
    const v1::LatencyModel model = estimator.model();
    const LatencyPredictor predictor(model, kBlock);
    double slowest = 0;
    for (const v1::RankTelemetry& t : step.ranks) {
      double factor = 1;
      for (const v1::RankFactor& f : estimator.rank_factors()) {
        if (f.rank() == t.rank()) factor = f.time_factor();
      }
      double sum = 0;
      for (const v1::MicroBatchTelemetry& mb : t.micro_batches()) {
        sum += model.constant_ms();
        for (const v1::SequenceTelemetry& s : mb.sequences()) {
          double mean = 0;
          for (const uint32_t k : s.realized_budget_blocks()) {
            mean += MsFromNs(predictor.SequenceNs(
                        static_cast<int64_t>(s.tokens()),
                        static_cast<int64_t>(BlocksOf(s.tokens(), kBlock)), k)) /
                    s.realized_budget_blocks_size();
          }
          sum += mean;
        }
      }
      slowest = std::max(slowest, sum * factor);
    }
    return slowest + model.step_constant_ms();
  }

  v1::LatencyProfile ProfileTimes(double factor) const {
    v1::LatencyProfile profile;
    v1::LatencyModel& m = *profile.mutable_model();
    m = truth_;
    m.set_constant_ms(truth_.constant_ms() * factor);
    m.set_per_token_ms(truth_.per_token_ms() * factor);
    m.set_per_pair_ms(truth_.per_pair_ms() * factor);
    m.set_router_ms_per_token_block(truth_.router_ms_per_token_block() * factor);
    return profile;
  }

  std::vector<double> slowness_;
  double constant_ms = 0;

 private:
  uint32_t ranks_;
  double noise_;
  v1::LatencyModel truth_;
  std::mt19937_64 random_{11};
};

double MeanPredictedOverMeasured(Machine& machine, LatencyEstimator& estimator, int steps) {
  double sum = 0;
  for (int s = 0; s < steps; ++s) {
    const Machine::Step step = machine.Run(static_cast<uint64_t>(s));
    sum += Machine::Predict(estimator, step) / step.step_ms;
    Machine::Report(step, estimator);
  }
  return sum / steps;
}

TEST(LatencyEstimator, PredictsThirtyNoisyStepsWithinTenPercentFromAMeasuredProfile) {
  for (const double off : {0.7, 1.0, 1.4}) {
    Machine machine(4, 0.2);
    machine.constant_ms = 6;
    LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(off));
    EXPECT_NEAR(MeanPredictedOverMeasured(machine, estimator, 30), 1.0, 0.05) << off;
  }
}

TEST(LatencyEstimator, LearnsTheShapeFromTheDefaultModel) {
  Machine machine(2, 0.02);
  LatencyEstimator estimator(machine.Options());
  EXPECT_EQ(estimator.source(), "default");
  MeanPredictedOverMeasured(machine, estimator, 60);
  EXPECT_EQ(estimator.source(), "learned");
  const LatencyPredictor learned(estimator.model(), kBlock);
  const LatencyPredictor truth(machine.ProfileTimes(1).model(), kBlock);
  for (const int64_t n : {500, 1500, 3000}) {
    const int64_t blocks = (n + kBlock - 1) / kBlock;
    for (const int64_t k : {2, 8, 20}) {
      const auto t = static_cast<double>(truth.SequenceNs(n, blocks, k));
      EXPECT_NEAR(static_cast<double>(learned.SequenceNs(n, blocks, k)) / t, 1.0, 0.05)
          << n << " tokens, budget " << k;
    }
  }
}

TEST(LatencyEstimator, FollowsARankThatTurnsSlowWithinTenSteps) {
  Machine machine(4, 0.05);
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  MeanPredictedOverMeasured(machine, estimator, 30);
  EXPECT_NEAR(estimator.time_factor(2), 1.0, 0.05);
  machine.slowness_[2] = 1.3;
  for (uint64_t s = 30; s < 40; ++s) Machine::Report(machine.Run(s), estimator);
  EXPECT_NEAR(estimator.time_factor(2), 1.3, 0.07);
  EXPECT_NEAR(estimator.time_factor(0), 1.0, 0.05);
  const auto factors = estimator.rank_factors();
  const auto slow = std::find_if(factors.begin(), factors.end(),
                                 [](const v1::RankFactor& f) { return f.rank() == 2; });
  ASSERT_NE(slow, factors.end());
  EXPECT_NEAR(slow->time_factor(), 1.3, 0.07);
}

TEST(LatencyEstimator, DoesNotTakeNoiseForSlowRanks) {
  // Steps that scatter by some 10 % each, as on machines that are shared with others.
  Machine machine(2, 0.3);
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  double sum = 0;
  constexpr int kSteps = 200;
  for (uint64_t s = 0; s < kSteps; ++s) {
    Machine::Report(machine.Run(s), estimator);
    sum += std::fabs(estimator.time_factor(0) - 1);
  }
  EXPECT_LT(sum / kSteps, 0.005);
}

TEST(LatencyEstimator, FindsASlowRankUnderHeavyNoise) {
  Machine machine(4, 0.3);
  machine.slowness_[3] = 1.25;
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  MeanPredictedOverMeasured(machine, estimator, 30);
  EXPECT_NEAR(estimator.time_factor(3), 1.25, 0.08);
}

TEST(LatencyEstimator, IgnoresOneOutlier) {
  Machine machine(4, 0.05);
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  MeanPredictedOverMeasured(machine, estimator, 20);
  const v1::LatencyModel before = estimator.model();
  machine.slowness_[1] = 10;
  Machine::Report(machine.Run(20), estimator);
  machine.slowness_[1] = 1;
  EXPECT_NEAR(estimator.time_factor(1), 1.0, 0.05);
  const v1::LatencyModel after = estimator.model();
  EXPECT_NEAR(after.per_token_ms() / before.per_token_ms(), 1.0, 0.1);
  EXPECT_NEAR(after.per_pair_ms() / before.per_pair_ms(), 1.0, 0.1);
  EXPECT_LT(after.step_constant_ms(), before.step_constant_ms() + 2);
}

TEST(LatencyEstimator, LearnsWhatAStepCostsOutsideItsMicroBatches) {
  Machine machine(2, 0.0);
  machine.constant_ms = 12.5;
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  MeanPredictedOverMeasured(machine, estimator, 10);
  EXPECT_NEAR(estimator.model().step_constant_ms(), 12.5, 0.3);
  EXPECT_NEAR(estimator.model().forward_fraction(), 0.3, 1e-6);
}

TEST(LatencyEstimator, PassesOverReportsThatMakeNoSense) {
  Machine machine(2, 0.0);
  LatencyEstimator estimator(machine.Options());
  const std::string before = estimator.Serialize();
  v1::RankTelemetry bad = machine.Run(0).ranks[0];
  bad.set_rank(17);
  estimator.Observe(bad);
  bad.set_rank(0);
  bad.mutable_micro_batches(0)->set_forward_ms(std::nan(""));
  estimator.Observe(bad);
  EXPECT_EQ(estimator.source(), "default");
  EXPECT_EQ(estimator.time_factor(17), 1);
  EXPECT_EQ(estimator.Serialize(), before);
}

TEST(LatencyEstimator, CoefficientsAreNeverNegative) {
  Machine machine(3, 0.9);
  LatencyEstimator estimator(machine.Options());
  for (uint64_t s = 0; s < 50; ++s) {
    Machine::Report(machine.Run(s), estimator);
    const v1::LatencyModel m = estimator.model();
    EXPECT_GE(m.constant_ms(), 0);
    EXPECT_GE(m.per_token_ms(), 0);
    EXPECT_GE(m.per_pair_ms(), 0);
    EXPECT_GE(m.router_ms_per_token_block(), 0);
    EXPECT_GE(m.step_constant_ms(), 0);
    EXPECT_GT(m.constant_ms() + m.per_token_ms() + m.per_pair_ms(), 0);
  }
}

TEST(LatencyEstimator, ComesBackFromItsBytes) {
  Machine machine(3, 0.1);
  LatencyEstimator estimator(machine.Options(), machine.ProfileTimes(1));
  MeanPredictedOverMeasured(machine, estimator, 12);
  const std::string bytes = estimator.Serialize();
  LatencyEstimator other(machine.Options());
  ASSERT_TRUE(other.Restore(bytes).ok());
  EXPECT_EQ(other.model().SerializeAsString(), estimator.model().SerializeAsString());
  EXPECT_EQ(other.time_factor(1), estimator.time_factor(1));
  EXPECT_EQ(other.Serialize(), bytes);
}

TEST(LatencyEstimator, RefusesDamagedBytesAndThoseOfAnotherJob) {
  Machine machine(3, 0.1);
  LatencyEstimator estimator(machine.Options());
  MeanPredictedOverMeasured(machine, estimator, 3);
  const std::string bytes = estimator.Serialize();
  LatencyEstimator other(machine.Options());
  EXPECT_FALSE(other.Restore("").ok());
  EXPECT_FALSE(other.Restore(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(other.Restore(bytes + "x").ok());
  EXPECT_EQ(other.source(), "default");
  EXPECT_FALSE(LatencyEstimator(Machine(4, 0).Options()).Restore(bytes).ok());
}

}  // namespace
}  // namespace sparsebalance::planner
