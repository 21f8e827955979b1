// Low-rank adapters and dropout: what they compute, what they train, and that a mask depends on the
// sequence alone.
#include "worker/model/lora.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/adamw.h"
#include "worker/model/model_test_util.h"
#include "worker/model/random.h"

namespace sparsebalance::model {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

ModelConfig AdaptedConfig(std::string_view targets, int rank = 3) {
  ModelConfig config = TinyConfig();
  config.lora.rank = rank;
  config.lora.alpha = 4.5F;
  config.lora.targets = *ParseProjections(targets);
  return config;
}

const Parameter& Named(const TestModel& m, const std::string& name) {
  for (const Parameter& p : m.model->parameters()) {
    if (p.name == name) return p;
  }
  ADD_FAILURE() << name;
  return m.model->parameters().front();
}

// A projection that has an adapter, in the model with adapters.
struct Adapted {
  std::string weight;
  const Parameter *a, *b;
};

std::vector<Adapted> AdaptedProjections(const TestModel& m) {
  std::vector<Adapted> out;
  for (const Parameter& p : m.model->store()->adapter_parameters()) {
    const size_t at = p.name.find("lora_A.weight");
    if (at == std::string::npos) continue;
    const std::string module = p.name.substr(0, at);
    out.push_back({module + "weight", &p, &Named(m, module + "lora_B.weight")});
  }
  return out;
}

// The model without adapters whose projections are W + scale * B A.
TestModel Merged(const TestModel& adapted) {
  ModelConfig config = adapted.model->config();
  const float scale = config.lora.Scale();
  config.lora = {};
  TestModel out = MakeModel(config);
  for (const Parameter& p : out.model->parameters()) {
    EXPECT_TRUE(out.model->store()->Write(p, adapted.Host(Named(adapted, p.name).value)).ok());
  }
  for (const Adapted& projection : AdaptedProjections(adapted)) {
    const Parameter& w = Named(out, projection.weight);
    std::vector<float> value = out.Host(w.value);
    const std::vector<float> a = adapted.Host(projection.a->value);
    const std::vector<float> b = adapted.Host(projection.b->value);
    const int64_t rank = projection.a->shape[0];
    for (int64_t o = 0; o < w.shape[0]; ++o) {
      for (int64_t i = 0; i < w.shape[1]; ++i) {
        for (int64_t r = 0; r < rank; ++r) {
          value[o * w.shape[1] + i] += scale * b[o * rank + r] * a[r * w.shape[1] + i];
        }
      }
    }
    EXPECT_TRUE(out.model->store()->Write(w, value).ok());
  }
  return out;
}

TEST(LoraTest, FreshAdaptersDoNotChangeTheModel) {
  const ModelConfig config = AdaptedConfig("all");
  TestModel adapted = MakeModel(config);
  TestModel plain = MakeModel(TinyConfig());
  const MicroBatch batch = RandomBatch(config, {19, 8}, 2);
  EXPECT_EQ(*adapted.model->Logits(batch, kGuardOff), *plain.model->Logits(batch, kGuardOff));
}

TEST(LoraTest, AdaptersComputeAndLearnAsTheirProductWithinTheWeights) {
  for (const char* targets : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                              "down_proj", "q_proj,v_proj", "attention", "mlp", "all"}) {
    const ModelConfig config = AdaptedConfig(targets);
    TestModel adapted = MakeTrained(config);
    TestModel merged = Merged(adapted);
    const MicroBatch batch = RandomBatch(config, {19, 1, 30}, 3);
    EXPECT_LT(RelativeDistance(*adapted.model->Logits(batch, kGuardOff),
                               *merged.model->Logits(batch, kGuardOff)),
              1e-5)
        << targets;
    for (TestModel* m : {&adapted, &merged}) {
      SB_ASSERT_OK(m->model->ZeroGrads());
      SB_ASSERT_OK(m->model->ForwardBackward(batch, 0.1, kGuardOff).status());
    }
    const float scale = config.lora.Scale();
    const std::vector<Adapted> projections = AdaptedProjections(adapted);
    EXPECT_EQ(projections.size(), config.lora.targets.count() * config.num_layers) << targets;
    for (const Adapted& projection : projections) {
      // Of W + scale * B A by the chain rule: dB = scale * dW A^T, dA = scale * B^T dW.
      const Parameter& w = Named(merged, projection.weight);
      const std::vector<float> w_grad = merged.Host(w.grad);
      const std::vector<float> a = adapted.Host(projection.a->value);
      const std::vector<float> b = adapted.Host(projection.b->value);
      const int64_t rank = projection.a->shape[0];
      const int64_t inputs = w.shape[1];
      std::vector<float> a_grad(a.size(), 0.0F);
      std::vector<float> b_grad(b.size(), 0.0F);
      for (int64_t o = 0; o < w.shape[0]; ++o) {
        for (int64_t i = 0; i < inputs; ++i) {
          for (int64_t r = 0; r < rank; ++r) {
            b_grad[o * rank + r] += scale * w_grad[o * inputs + i] * a[r * inputs + i];
            a_grad[r * inputs + i] += scale * w_grad[o * inputs + i] * b[o * rank + r];
          }
        }
      }
      EXPECT_LT(RelativeDistance(adapted.Host(projection.a->grad), a_grad), 1e-4)
          << projection.a->name;
      EXPECT_LT(RelativeDistance(adapted.Host(projection.b->grad), b_grad), 1e-4)
          << projection.b->name;
    }
  }
}

TEST(LoraTest, OnlyAdaptersAreTrainedAndOnlyTheyHaveGradientsAndMoments) {
  const ModelConfig config = AdaptedConfig("q_proj,v_proj");
  TestModel m = MakeTrained(config);
  const ArenaSizes sizes = ParameterArenaSizes(config);
  EXPECT_EQ(m.model->grads().size(), sizes.trainable);
  EXPECT_LT(sizes.trainable * 4, sizes.values);
  for (const Parameter& p : m.model->store()->base_parameters()) EXPECT_FALSE(p.trainable());
  for (const Parameter& p : m.model->store()->adapter_parameters()) EXPECT_TRUE(p.trainable());

  const std::vector<float> before = m.Host(m.model->values());
  const auto optimizer = AdamW::Create({}, m.model->store(), m.backend.get());
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  EXPECT_EQ((*optimizer)->ExportState()->m.size(), static_cast<size_t>(sizes.trainable));
  SB_ASSERT_OK(m.model->ForwardBackward(RandomBatch(config, {30}, 2), 0.1, 0.1).status());
  SB_ASSERT_OK((*optimizer)->Step(0.01, 1.0));
  const std::vector<float> after = m.Host(m.model->values());
  for (const Parameter& p : m.model->parameters()) {
    for (int64_t i = 0; i < p.value.size(); ++i) {
      const auto at = static_cast<size_t>(p.arena_offset + i);
      if (p.trainable()) {
        EXPECT_NE(before[at], after[at]) << p.name;
      } else {
        EXPECT_EQ(before[at], after[at]) << p.name;
      }
    }
  }
}

TEST(LoraTest, GradientsDoNotDependOnThreads) {
  const ModelConfig config = AdaptedConfig("all");
  const MicroBatch batch = RandomBatch(config, {1500, 700}, 3);
  std::vector<std::vector<float>> grads;
  for (const int threads : {1, 2, 3}) {
    TestModel m = MakeTrained(config, threads);
    SB_ASSERT_OK(m.model->ForwardBackward(batch, 0.1, 0.1).status());
    grads.push_back(m.Host(m.model->grads()));
  }
  EXPECT_THAT(grads, Each(grads.front()));
}

TEST(LoraTest, ProjectionsAreNamedAloneInGroupsAndAll) {
  EXPECT_EQ(ProjectionsText(*ParseProjections("v_proj, q_proj")), "q_proj,v_proj");
  EXPECT_EQ(ProjectionsText(*ParseProjections("attention")), "q_proj,k_proj,v_proj,o_proj");
  EXPECT_EQ(ParseProjections("mlp,attention")->count(), kProjections);
  EXPECT_EQ(ParseProjections("all")->count(), kProjections);
  for (const char* bad : {"", "q", "q_proj,,v_proj", "lm_head"}) {
    EXPECT_EQ(ParseProjections(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(ParseProjections("q_proj,lm_head").status().message()),
              HasSubstr("'lm_head'"));
}

TEST(LoraTest, BadConfigsAreRefused) {
  for (LoraConfig bad : {LoraConfig{.rank = -1}, LoraConfig{.rank = 4, .alpha = 0},
                         LoraConfig{.rank = 4, .dropout = 1}, LoraConfig{.rank = 4}}) {
    if (bad.rank != 4 || bad.alpha == 0 || bad.dropout > 0) bad.targets.set();
    EXPECT_EQ(bad.Validate().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(LoraConfig().Validate().ok());
}

// --- dropout -------------------------------------------------------------------------------------

ModelConfig DroppingConfig(bool adapters) {
  ModelConfig config = adapters ? AdaptedConfig("all") : TinyConfig();
  config.dropout = 0.2F;
  if (adapters) config.lora.dropout = 0.3F;
  return config;
}

std::vector<float> Gradients(TestModel& m, const MicroBatch& batch) {
  EXPECT_TRUE(m.model->ZeroGrads().ok());
  const auto report = m.model->ForwardBackward(batch, 0.1, kGuardOff);
  EXPECT_TRUE(report.ok()) << report.status();
  return m.Host(m.model->grads());
}

TEST(DropoutTest, GradientsMatchDifferencesOfTheLossUnderTheSameMasks) {
  for (const bool adapters : {false, true}) {
    const ModelConfig config = DroppingConfig(adapters);
    TestModel m = MakeTrained(config);
    MicroBatch batch = RandomBatch(config, {21, 13}, 100);
    batch.dropout_keys = {17, 18};
    const std::vector<float> grads = Gradients(m, batch);
    const std::vector<float> start = m.Host(m.model->store()->trainable_values());
    double squared = 0;
    for (const float g : grads) squared += static_cast<double>(g) * g;
    const auto loss_at = [&](double step) {
      std::vector<float> moved = start;
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] += static_cast<float>(step * grads[i] / std::sqrt(squared));
      }
      EXPECT_TRUE(m.model->store()->Write(m.model->store()->trainable_begin(), moved).ok());
      const auto report = m.model->Loss(batch, kGuardOff);
      EXPECT_TRUE(report.ok()) << report.status();
      return 0.1 * report->loss_sum;
    };
    constexpr double kStep = 5e-4;
    const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    EXPECT_NEAR(slope / std::sqrt(squared), 1.0, 2e-3) << "adapters " << adapters;
  }
}

TEST(DropoutTest, AMaskBelongsToItsSequenceWhereverItLies) {
  for (const bool adapters : {false, true}) {
    const ModelConfig config = DroppingConfig(adapters);
    TestModel m = MakeTrained(config);
    MicroBatch batch = RandomBatch(config, {21, 5, 34}, 3);
    batch.dropout_keys = {7, 8, 9};
    const std::vector<float> together = Gradients(m, batch);
    MicroBatch moved = Pick(batch, {2, 0});
    moved.dropout_keys = {9, 7};
    MicroBatch rest = Pick(batch, {1});
    rest.dropout_keys = {8};
    std::vector<float> apart = Gradients(m, moved);
    const std::vector<float> other = Gradients(m, rest);
    for (size_t i = 0; i < apart.size(); ++i) apart[i] += other[i];
    EXPECT_LT(RelativeDistance(apart, together), 1e-5);

    moved.dropout_keys = {7, 9};
    std::vector<float> exchanged = Gradients(m, moved);
    for (size_t i = 0; i < exchanged.size(); ++i) exchanged[i] += other[i];
    EXPECT_GT(RelativeDistance(exchanged, together), 1e-2);
  }
}

TEST(DropoutTest, CheckpointedActivationsDropTheSame) {
  ModelConfig config = DroppingConfig(true);
  MicroBatch batch = RandomBatch(config, {61, 30}, 3);
  batch.dropout_keys = {1, 2};
  TestModel keeps = MakeTrained(config);
  config.activation_checkpointing = true;
  TestModel forgets = MakeTrained(config);
  EXPECT_EQ(Gradients(keeps, batch), Gradients(forgets, batch));
}

TEST(DropoutTest, EvaluationDropsNothing) {
  const ModelConfig config = DroppingConfig(true);
  TestModel drops = MakeTrained(config);
  TestModel plain = MakeTrained(AdaptedConfig("all"));
  const MicroBatch batch = RandomBatch(config, {21, 13}, 3);
  EXPECT_EQ(*drops.model->Logits(batch, kGuardOff), *plain.model->Logits(batch, kGuardOff));
  EXPECT_EQ(drops.model->Loss(batch, kGuardOff)->loss_sum,
            plain.model->Loss(batch, kGuardOff)->loss_sum);
}

TEST(DropoutTest, TrainingWithoutKeysIsRefused) {
  for (const bool adapters : {false, true}) {
    ModelConfig config = DroppingConfig(adapters);
    if (adapters) config.dropout = 0;
    TestModel m = MakeModel(config);
    MicroBatch batch = RandomBatch(config, {21, 13}, 3);
    EXPECT_EQ(m.model->ForwardBackward(batch, 0.1, 0.1).status().code(),
              absl::StatusCode::kInvalidArgument);
    batch.dropout_keys = {1};
    const absl::Status status = m.model->ForwardBackward(batch, 0.1, 0.1).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("dropout_keys has 1 entries, needs 2"));
  }
}

}  // namespace
}  // namespace sparsebalance::model
