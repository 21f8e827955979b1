#include "worker/model/adamw.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/model_test_util.h"

namespace sparsebalance::model {
namespace {

TEST(AdamWTest, TwoStepsByHandWithDecayOnMatricesOnly) {
  TestModel m = MakeModel(TinyConfig());
  AdamWOptions options;
  options.weight_decay = 0.5F;
  auto optimizer = *AdamW::Create(options, m.model->store(), m.backend.get());
  const std::vector<float> start = m.Host(m.model->values());
  // Constant gradient 2, scaled by 0.5 to 1: m^ = 1 and v^ = 1 at every step, so each update is
  // lr * 1 / (1 + eps), and matrices shrink by (1 - lr * 0.5) first.
  SB_ASSERT_OK(m.backend->Fill(m.model->grads(), 2.0F));
  SB_ASSERT_OK(optimizer->Step(0.1, 0.5));
  SB_ASSERT_OK(optimizer->Step(0.1, 0.5));
  EXPECT_EQ(optimizer->step(), 2);
  for (const Parameter& p : m.model->parameters()) {
    const std::vector<float> value = m.Host(p.value);
    const double keep = p.is_matrix() ? 1 - 0.1 * 0.5 : 1;
    for (size_t i = 0; i < value.size(); ++i) {
      const double expected = (start[p.arena_offset + i] * keep - 0.1) * keep - 0.1;
      ASSERT_NEAR(value[i], expected, 1e-5) << p.name;
    }
  }
}

TEST(AdamWTest, AChangingGradientFollowsTheMovingAverages) {
  TestModel m = MakeModel(TinyConfig());
  AdamWOptions options;
  options.weight_decay = 0;
  auto optimizer = *AdamW::Create(options, m.model->store(), m.backend.get());
  const float start = m.Host(m.model->values())[0];
  SB_ASSERT_OK(m.backend->Fill(m.model->grads(), 1.0F));
  SB_ASSERT_OK(optimizer->Step(0.1, 1.0));  // -0.1
  SB_ASSERT_OK(m.backend->Fill(m.model->grads(), -3.0F));
  SB_ASSERT_OK(optimizer->Step(0.1, 1.0));
  // m = 0.9 * 0.1 - 0.3 = -0.21, m^ = -0.21 / 0.19; v = 0.95 * 0.05 + 0.45 = 0.4975, v^ / 0.0975.
  const double expected = start - 0.1 + 0.1 * (0.21 / 0.19) / std::sqrt(0.4975 / 0.0975);
  EXPECT_NEAR(m.Host(m.model->values())[0], expected, 1e-6);
}

TEST(AdamWTest, ARestoredStateContinuesBitForBit) {
  const ModelConfig config = TinyConfig();
  const MicroBatch batch = RandomBatch(config, {20, 9}, 2);
  const auto train = [&](TestModel& m, AdamW& optimizer, int steps) {
    for (int i = 0; i < steps; ++i) {
      SB_ASSERT_OK(m.model->ZeroGrads());
      SB_ASSERT_OK(m.model->ForwardBackward(batch, 0.1, 0.1).status());
      SB_ASSERT_OK(optimizer.Step(1e-2, 1.0));
    }
  };
  TestModel a = MakeModel(config);
  auto a_optimizer = *AdamW::Create({}, a.model->store(), a.backend.get());
  train(a, *a_optimizer, 2);
  const AdamWState state = *a_optimizer->ExportState();
  EXPECT_EQ(state.step, 2);

  TestModel b = MakeModel(config, 1, /*seed=*/99);
  auto b_optimizer = *AdamW::Create({}, b.model->store(), b.backend.get());
  SB_ASSERT_OK(b.model->store()->Write(0, a.Host(a.model->values())));
  SB_ASSERT_OK(b_optimizer->ImportState(state));
  train(a, *a_optimizer, 2);
  train(b, *b_optimizer, 2);
  EXPECT_EQ(a.Host(a.model->values()), b.Host(b.model->values()));
}

TEST(AdamWTest, AStateOfAnotherModelIsRefused) {
  TestModel m = MakeModel(TinyConfig());
  auto optimizer = *AdamW::Create({}, m.model->store(), m.backend.get());
  AdamWState state = *optimizer->ExportState();
  state.v.pop_back();
  EXPECT_EQ(optimizer->ImportState(state).code(), absl::StatusCode::kInvalidArgument);
  state = *optimizer->ExportState();
  state.step = -1;
  EXPECT_EQ(optimizer->ImportState(state).code(), absl::StatusCode::kInvalidArgument);
}

TEST(AdamWTest, TheGradientNormIsTheLengthOfAllGradients) {
  TestModel m = MakeModel(TinyConfig());
  auto optimizer = *AdamW::Create({}, m.model->store(), m.backend.get());
  SB_ASSERT_OK(m.model->ZeroGrads());
  SB_ASSERT_OK(m.backend->Fill(m.model->parameters()[0].grad, 3.0F));
  SB_ASSERT_OK(m.backend->Fill(m.model->parameters()[1].grad, -4.0F));
  const double expected =
      std::sqrt(9.0 * static_cast<double>(m.model->parameters()[0].grad.size()) +
                16.0 * static_cast<double>(m.model->parameters()[1].grad.size()));
  EXPECT_NEAR(*optimizer->GradNorm(), expected, 1e-9 * expected);
  EXPECT_DOUBLE_EQ(ClipScale(4.0, 1.0), 0.25);
  EXPECT_DOUBLE_EQ(ClipScale(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(ClipScale(4.0, 0.0), 1.0);
}

TEST(AdamWTest, BadOptionsAreRefused) {
  TestModel m = MakeModel(TinyConfig());
  for (const AdamWOptions& bad :
       {AdamWOptions{.beta1 = 1.0F}, AdamWOptions{.beta2 = -0.1F}, AdamWOptions{.epsilon = 0.0F},
        AdamWOptions{.weight_decay = -1}, AdamWOptions{.weight_decay_groups = {{"*", -0.1F}}},
        AdamWOptions{.weight_decay_groups = {{"", 0.1F}}}}) {
    EXPECT_EQ(AdamW::Create(bad, m.model->store(), m.backend.get()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(AdamWTest, EachParameterDecaysByTheFirstGroupThatFitsIt) {
  TestModel m = MakeModel(TinyConfig());
  AdamWOptions options;
  options.weight_decay = 0.5F;
  options.weight_decay_groups = {{"model.embed_tokens.*", 0},
                                 {"*.mlp.*", 0.25F},
                                 {"*.down_proj.weight", 9},
                                 {"*norm.weight", 0.125F}};
  const auto optimizer = AdamW::Create(options, m.model->store(), m.backend.get());
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const std::vector<float> start = m.Host(m.model->values());
  // Without gradients a step does nothing but decay.
  SB_ASSERT_OK(m.model->ZeroGrads());
  SB_ASSERT_OK((*optimizer)->Step(1.0, 1.0));
  for (const Parameter& p : m.model->parameters()) {
    float decay = p.is_matrix() ? 0.5F : 0.0F;
    if (p.name == "model.embed_tokens.weight") decay = 0;
    if (p.name.find(".mlp.") != std::string::npos) decay = 0.25F;
    if (p.name.ends_with("norm.weight")) decay = 0.125F;
    const std::vector<float> now = m.Host(p.value);
    for (size_t i = 0; i < now.size(); ++i) {
      EXPECT_FLOAT_EQ(now[i], start[p.arena_offset + i] * (1 - decay)) << p.name;
    }
  }
}

TEST(AdamWTest, AWeightDecayGroupThatFitsNothingIsNamed) {
  TestModel m = MakeModel(TinyConfig());
  AdamWOptions options;
  options.weight_decay_groups = {{"*.q_proj.*", 0}, {"*.q_prj.*", 0}};
  const auto optimizer = AdamW::Create(options, m.model->store(), m.backend.get());
  EXPECT_EQ(optimizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(optimizer.status().message().find("'*.q_prj.*'"), std::string::npos)
      << optimizer.status();
}

}  // namespace
}  // namespace sparsebalance::model
