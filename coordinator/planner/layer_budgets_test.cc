#include "coordinator/planner/layer_budgets.h"

#include <algorithm>
#include <random>
#include <vector>

#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/plan_expectations.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/test_jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Curves = google::protobuf::RepeatedPtrField<v1::CoverageCurve>;

v1::CoverageCurve Points(const std::vector<std::pair<uint32_t, double>>& points) {
  v1::CoverageCurve curve;
  for (const auto& [k, c] : points) {
    curve.add_budget_blocks(k);
    curve.add_coverage(c);
  }
  return curve;
}

// Two layers of a sequence of 8 blocks: pairs(8, k) = 8, 15, 21, 26, 30, 33, 35, 36.
Curves SteepAndFlat() {
  Curves curves;
  *curves.Add() = Points({{1, 0.0}, {2, 0.9}, {3, 0.95}, {8, 1.0}});  // two blocks are plenty
  *curves.Add() = Points({{1, 0.0}, {2, 0.3}, {3, 0.5}, {4, 0.65}, {5, 0.8}, {8, 1.0}});
  return curves;
}

TEST(LayerBudgets, GiveTheBlocksToTheLayerThatGainsMost) {
  const LayerBudgets layers(
      SteepAndFlat(),
      {.blocks = 8, .stages = 1, .base = 3, .min = 1, .max = 8, .keep = kFullCoverage / 2});
  // Three blocks in both layers are 42 pairs: 15 leave 27 for the flat one, which is four blocks.
  EXPECT_THAT(layers.At(3), ElementsAre(2U, 4U));
  EXPECT_EQ(layers.base_coverage(), 725'000'000);
  const std::vector<CurvePoint> curve = layers.Curve();
  const auto at_three = std::find_if(curve.begin(), curve.end(),
                                     [](const CurvePoint& point) { return point.budget == 3; });
  ASSERT_NE(at_three, curve.end());
  EXPECT_EQ(at_three->coverage, 775'000'000);
}

TEST(LayerBudgets, EveryLayerKeepsItsOwnGuard) {
  // The flat layer has 0.5 at its base and may not fall below 0.45, the steep one 0.95 and 0.855.
  const LayerBudgets layers(
      SteepAndFlat(),
      {.blocks = 8, .stages = 1, .base = 3, .min = 1, .max = 8, .keep = kFullCoverage / 10 * 9});
  // Two and three blocks are 36 pairs, more than two blocks in both layers make.
  EXPECT_EQ(layers.least(), 3);
  EXPECT_FALSE(layers.Allows(std::vector<uint32_t>{2, 2}, 3));
  EXPECT_FALSE(layers.Allows(std::vector<uint32_t>{1, 4}, 3));
  EXPECT_FALSE(layers.Allows(std::vector<uint32_t>{3, 4}, 3)) << "more work than the budget";
  EXPECT_FALSE(layers.Allows(std::vector<uint32_t>{3}, 3)) << "a layer is missing";
  EXPECT_TRUE(layers.Allows(std::vector<uint32_t>{2, 3}, 3));
}

TEST(LayerBudgets, AStageLendsNoWorkToAnother) {
  // With a layer a stage, each has what the uniform budget gives it.
  const LayerBudgets layers(
      SteepAndFlat(),
      {.blocks = 8, .stages = 2, .base = 3, .min = 1, .max = 8, .keep = kFullCoverage / 2});
  EXPECT_THAT(layers.At(3), ElementsAre(3U, 3U));
}

struct RandomLayers {
  explicit RandomLayers(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto unit = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    limits.blocks = static_cast<int32_t>(2 + random() % 40);
    limits.stages = static_cast<int>(1 + random() % 3);
    limits.min = static_cast<int32_t>(1 + random() % 2);
    limits.min = std::min(limits.min, limits.blocks - 1);
    limits.base = std::min(limits.blocks, limits.min + static_cast<int32_t>(random() % 8));
    limits.max =
        limits.base +
        static_cast<int32_t>(random() % static_cast<uint64_t>(limits.blocks - limits.base + 1));
    limits.keep = kFullCoverage - static_cast<int64_t>(random() % 4) * (kFullCoverage / 10);
    const auto count = static_cast<uint64_t>(limits.stages) + random() % 6;
    for (uint64_t l = 0; l < count; ++l) {
      *curves.Add() = PowerCurve(static_cast<uint32_t>(limits.blocks), 0.1 + 2.5 * unit());
    }
  }
  LayerBudgets::Limits limits{};
  Curves curves;
};

TEST(LayerBudgets, NeverCoverLessThanUniformOnesNorMoreThanTheirBound) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const RandomLayers random(seed);
    const LayerBudgets layers(random.curves, random.limits);
    const std::vector<CurvePoint> curve = layers.Curve();
    const std::vector<CurvePoint> bound = layers.BoundingCurve();
    const std::vector<CurvePoint> uniform = layers.UniformCurve();
    ASSERT_EQ(curve.size(), bound.size());
    ASSERT_LE(layers.least(), random.limits.base);
    int64_t before = 0;
    for (size_t p = 0; p < curve.size(); ++p) {
      const int32_t k = curve[p].budget;
      const std::vector<uint32_t> budgets = layers.At(k);
      EXPECT_TRUE(layers.Allows(budgets, k)) << "seed " << seed << " budget " << k;
      EXPECT_GE(curve[p].coverage, before) << "seed " << seed << " budget " << k;
      EXPECT_LE(curve[p].coverage, bound[p].coverage) << "seed " << seed << " budget " << k;
      before = curve[p].coverage;
      double sum = 0;
      for (int l = 0; l < random.curves.size(); ++l) {
        sum +=
            CoverageAt(random.curves[l], static_cast<uint32_t>(random.limits.blocks), budgets[l]);
      }
      EXPECT_NEAR(static_cast<double>(curve[p].coverage) / kFullCoverage,
                  sum / random.curves.size(), 1e-8);
      const std::vector<uint32_t> same(random.curves.size(), static_cast<uint32_t>(k));
      if (layers.Allows(same, k)) {
        EXPECT_GE(curve[p].coverage + 1, Interpolate(uniform, k)) << "seed " << seed;
      }
    }
  }
}

TEST(LayerBudgets, AreCloseToTheBestOfAllAndTheBoundIsAboveThem) {
  double lost = 0;
  int count = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Curves curves;
    for (int l = 0; l < 3; ++l) {
      *curves.Add() = DensePowerCurve(8, 0.2 + static_cast<double>(random() % 200) / 100);
    }
    const LayerBudgets layers(
        curves,
        {.blocks = 8, .stages = 1, .base = 3, .min = 1, .max = 8, .keep = kFullCoverage / 10 * 7});
    const std::vector<CurvePoint> curve = layers.Curve();
    const std::vector<CurvePoint> bound = layers.BoundingCurve();
    for (size_t p = 0; p < curve.size(); ++p) {
      double best = 0;
      for (uint32_t all = 0; all < 512; ++all) {
        const std::vector<uint32_t> budgets = {1 + all % 8, 1 + all / 8 % 8, 1 + all / 64};
        if (!layers.Allows(budgets, curve[p].budget)) continue;
        double sum = 0;
        for (int l = 0; l < 3; ++l) sum += CoverageAt(curves[l], 8, budgets[l]);
        best = std::max(best, sum / 3);
      }
      const double found = static_cast<double>(curve[p].coverage) / kFullCoverage;
      EXPECT_LE(found, best + 1e-8) << "seed " << seed;
      EXPECT_GE(static_cast<double>(bound[p].coverage) / kFullCoverage, best - 1e-8)
          << "seed " << seed;
      lost += best - found;
      ++count;
    }
  }
  EXPECT_LT(lost / count, 0.01);
}

// ---- in plans ----

v1::PlanRequest WithLayers(uint64_t seed) {
  v1::PlanRequest request = RandomRequest(seed);
  std::mt19937_64 random(seed);
  v1::PlanSettings& s = *request.mutable_settings();
  s.set_layer_budgets(true);
  const uint64_t layers = std::max<uint32_t>(1, s.pipeline_parallel_size()) + random() % 5;
  for (v1::Sequence& q : *request.mutable_sequences()) {
    if (random() % 5 == 0) continue;  // not measured yet
    const auto blocks = static_cast<uint32_t>(BlocksOf(q.tokens(), s.block_tokens()));
    for (uint64_t l = 0; l < layers; ++l) {
      *q.add_layer_coverage() = PowerCurve(blocks, 0.2 + static_cast<double>(random() % 200) / 100);
    }
  }
  return request;
}

TEST(LayerPlans, KeepEveryConstraintAndTheBoundHoldsForThem) {
  int dealt = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const v1::PlanRequest request = WithLayers(seed);
    const absl::StatusOr<v1::Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.status();
    EXPECT_LE(plan->lower_bound_ms(), plan->predicted_step_ms() + 1e-9) << "seed " << seed;
    EXPECT_TRUE(CheckPlan(request, *plan).ok()) << CheckPlan(request, *plan);
    EXPECT_EQ(MakePlan(request)->SerializeAsString(), plan->SerializeAsString());
    const v1::PlanSettings& s = request.settings();
    for (const v1::RankPlan& rank : plan->ranks()) {
      for (const v1::MicroBatch& mb : rank.micro_batches()) {
        for (const v1::Slice& slice : mb.slices()) {
          if (slice.layer_budget_blocks().empty()) continue;
          ++dealt;
          const auto q = std::find_if(
              request.sequences().begin(), request.sequences().end(),
              [&](const v1::Sequence& one) { return one.id() == slice.sequence_id(); });
          const auto blocks = static_cast<uint32_t>(BlocksOf(q->tokens(), s.block_tokens()));
          ASSERT_EQ(slice.layer_budget_blocks_size(), q->layer_coverage_size());
          for (int l = 0; l < q->layer_coverage_size(); ++l) {
            const v1::CoverageCurve& curve = q->layer_coverage(l);
            const uint32_t base = std::min(s.base_budget_blocks(), blocks);
            EXPECT_GE(CoverageAt(curve, blocks, slice.layer_budget_blocks(l)),
                      (1 - s.coverage_guard()) * CoverageAt(curve, blocks, base) - 1e-8)
                << "seed " << seed << " layer " << l;
          }
        }
      }
    }
  }
  EXPECT_GT(dealt, 100) << "layers were hardly ever given budgets of their own";
}

TEST(LayerPlans, AreFasterThanUniformBudgetsAtTheSameCoverage) {
  double with = 0;
  double without = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    v1::PlanRequest request = LinearRequest(2, {});
    v1::PlanSettings& s = *request.mutable_settings();
    s.set_policy("sparsebalance");
    s.set_base_budget_blocks(16);
    // Otherwise the two keep different guards: by layer, and of the mean over layers.
    s.set_coverage_guard(1);
    s.set_layer_budgets(true);
    request.mutable_latency()->set_per_pair_ms(1e-6);
    for (uint64_t id = 1; id <= 8; ++id) {
      v1::Sequence& q = *request.add_sequences();
      q.set_id(id);
      q.set_tokens(100 * (20 + random() % 45));
      for (int l = 0; l < 24; ++l) {
        *q.add_layer_coverage() = PowerCurve(static_cast<uint32_t>(q.tokens() / 100),
                                             0.4 + static_cast<double>(random() % 160) / 100);
      }
    }
    with += MakePlan(request)->predicted_step_ms();
    s.set_layer_budgets(false);
    without += MakePlan(request)->predicted_step_ms();
  }
  EXPECT_LT(with, 0.97 * without);
}

TEST(LayerPlans, OtherPoliciesUseTheMeanOfTheCurves) {
  v1::PlanRequest request = LinearRequest(1, {800});
  *request.mutable_sequences(0)->mutable_layer_coverage() = SteepAndFlat();
  request.mutable_settings()->set_layer_budgets(true);
  request.mutable_settings()->set_base_budget_blocks(3);
  const v1::Plan plan = *MakePlan(request);
  EXPECT_NEAR(plan.mean_coverage(), 0.725, 1e-9);
  EXPECT_TRUE(plan.ranks(0).micro_batches(0).slices(0).layer_budget_blocks().empty());
}

TEST(LayerPlans, WhatIsWrongWithTheCurvesIsNamed) {
  const auto message = [](const auto& change) {
    v1::PlanRequest request = LinearRequest(1, {800, 800});
    request.mutable_settings()->set_pipeline_parallel_size(2);
    for (v1::Sequence& q : *request.mutable_sequences()) {
      *q.mutable_layer_coverage() = SteepAndFlat();
    }
    change(request);
    return std::string(MakePlan(request).status().message());
  };
  using R = v1::PlanRequest;
  EXPECT_EQ(message([](R&) {}), "");
  EXPECT_THAT(message([](R& r) { r.mutable_sequences(0)->mutable_layer_coverage()->RemoveLast(); }),
              HasSubstr("sequences[0].layer_coverage is 1 curves: must have at least one a stage"));
  EXPECT_THAT(
      message([](R& r) { *r.mutable_sequences(1)->add_layer_coverage() = SteepAndFlat()[0]; }),
      HasSubstr("must have as many as the sequences before it (2)"));
  EXPECT_THAT(message([](R& r) { r.mutable_sequences(1)->mutable_layer_coverage(1)->Clear(); }),
              HasSubstr("sequences[1].layer_coverage[1] is a curve of sequence 2: it is empty"));
  EXPECT_THAT(message([](R& r) {
                r.mutable_sequences(1)->mutable_layer_coverage(0)->set_coverage(1, 2.0);
              }),
              HasSubstr("sequences[1].layer_coverage[0]"));
}

}  // namespace
}  // namespace sparsebalance::planner
