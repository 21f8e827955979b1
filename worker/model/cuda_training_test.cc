// Training steps on the CUDA backend, emulated or on a GPU, against those on the CPU backend: same
// model, same data, same budgets.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/backend/device_under_test.h"
#include "worker/model/adamw.h"
#include "worker/model/memory_model.h"
#include "worker/model/model_test_util.h"

namespace sparsebalance::model {
namespace {

using kernels::ElementType;

// The smallest head that the attention kernels have.
ModelConfig TwoLayers() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 64;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 32;
  config.intermediate_size = 96;
  config.vocab_size = 61;
  config.block_tokens = 16;
  config.coverage_sample_stride = 3;
  return config;
}

const std::vector<int64_t> kLengths = {70, 33, 1};

// Plans that change from step to step.
std::vector<int32_t> BudgetsOf(int step) {
  const std::vector<std::vector<int32_t>> budgets = {{2, 3, 1}, {5, 1, 1}, {3, 2, 4}};
  return budgets[step % 3];
}

TestModel OnGpu(const ModelConfig& config, ElementType type, int order = 0,
                int64_t memory_limit = 0) {
  auto backend = kernels::cuda::MakeBackendUnderTest(
      {.memory_limit_bytes = memory_limit, .activation_type = type, .poison_allocations = true},
      order);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return MakeModelOn(*std::move(backend), config);
}

MicroBatch BatchOf(const ModelConfig& config, int step) {
  MicroBatch batch = RandomBatch(config, kLengths, /*budget=*/3, 100 + step);
  batch.budgets = BudgetsOf(step);
  batch.base_budgets.assign(kLengths.size(), 3);
  if (config.Drops()) batch.dropout_keys = {11, 12, 13};
  return batch;
}

struct TrainingRun {
  std::vector<double> losses;
  std::vector<MicroBatchReport> reports;
  std::vector<float> gradients;  // of the last step
  std::vector<float> values;     // after it
};

TrainingRun Train(TestModel m, int steps = 3) {
  TrainingRun out;
  auto optimizer = AdamW::Create({}, m.model->store(), m.backend.get());
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  for (int step = 0; step < steps; ++step) {
    EXPECT_TRUE(m.model->ZeroGrads().ok());
    const MicroBatch batch = BatchOf(m.model->config(), step);
    auto report = m.model->ForwardBackward(batch, 1.0 / 104, /*coverage_guard=*/0.05);
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) return out;
    out.losses.push_back(report->loss_sum);
    out.reports.push_back(*std::move(report));
    out.gradients = m.Host(m.model->grads());
    EXPECT_TRUE((*optimizer)->GradNorm().ok());
    EXPECT_TRUE((*optimizer)->Step(1e-3, 1.0).ok());
  }
  out.values = m.Host(m.model->values());
  return out;
}

void ExpectSameTraining(const ModelConfig& config, ElementType type) {
  const TrainingRun cpu = Train(MakeModel(config));
  const TrainingRun gpu = Train(OnGpu(config, type));
  ASSERT_EQ(cpu.losses.size(), gpu.losses.size());
  const bool exact = type == ElementType::kFloat32;
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(gpu.losses[step] / cpu.losses[step], 1.0, exact ? 1e-5 : 1e-3) << "step " << step;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      const SequenceReport& expected = cpu.reports[step].sequences[s];
      const SequenceReport& actual = gpu.reports[step].sequences[s];
      if (exact) {
        EXPECT_EQ(actual.realized_budgets, expected.realized_budgets);
      }
      ASSERT_EQ(actual.coverage.size(), expected.coverage.size());
      for (size_t g = 0; g < expected.coverage.size(); ++g) {
        EXPECT_NEAR(actual.coverage[g], expected.coverage[g], exact ? 1e-5 : 1e-2);
      }
    }
  }
  EXPECT_LT(RelativeDistance(gpu.gradients, cpu.gradients), exact ? 1e-4 : 3e-2);
  EXPECT_LT(RelativeDistance(gpu.values, cpu.values), exact ? 1e-4 : 1e-2);
}

TEST(CudaTrainingTest, ThreeStepsInFp32AreThoseOfTheCpu) {
  ExpectSameTraining(TwoLayers(), ElementType::kFloat32);
}

TEST(CudaTrainingTest, ThreeStepsInBf16HaveTheLossesOfTheCpu) {
  ExpectSameTraining(TwoLayers(), ElementType::kBfloat16);
}

TEST(CudaTrainingTest, AdaptersDropoutAndForgottenActivationsAreThoseOfTheCpu) {
  ModelConfig config = TwoLayers();
  config.dropout = 0.1F;
  config.activation_checkpointing = true;
  config.lora.rank = 4;
  config.lora.dropout = 0.2F;
  config.lora.targets = *ParseProjections("all");
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
    SCOPED_TRACE(kernels::ElementTypeName(type));
    ExpectSameTraining(config, type);
  }
}

TEST(CudaTrainingTest, NoBitDependsOnTheOrderOfThreads) {
  const TrainingRun forward = Train(OnGpu(TwoLayers(), ElementType::kBfloat16), 2);
  for (int order = 1; order < kernels::cuda::kThreadOrders; ++order) {
    const TrainingRun other = Train(OnGpu(TwoLayers(), ElementType::kBfloat16, order), 2);
    EXPECT_EQ(other.losses, forward.losses);
    EXPECT_EQ(other.values, forward.values);
  }
}

// The rule that a worker cuts its micro-batches by.
TEST(CudaTrainingTest, ChangingBudgetsStayWithinTheMemoryOfTheLargest) {
  const ModelConfig config = TwoLayers();
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
    TestModel probe = OnGpu(config, type);
    const auto estimate = EstimateMemory(config, *probe.backend, {0, 70, 103, 104}, {5, 3, 4});
    ASSERT_TRUE(estimate.ok()) << estimate.status();
    // Beside the estimate: two counters, and the layout's arrays.
    const TrainingRun run = Train(OnGpu(config, type, /*order=*/0, estimate->peak + 16 * 512));
    EXPECT_EQ(run.losses.size(), 3U);
  }
}

TEST(CudaTrainingTest, LessMemoryThanTheModelSaysIsAnError) {
  const ModelConfig config = TwoLayers();
  TestModel probe = OnGpu(config, ElementType::kBfloat16);
  const auto estimate = EstimateMemory(config, *probe.backend, {0, 70, 103, 104}, {5, 3, 4});
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  // What the optimizer would have is left over.
  const int64_t limit = estimate->state + (estimate->peak - estimate->state) / 2 -
                        2 * probe.backend->AllocatedBytes(probe.model->grads().size() * 4);
  TestModel m = OnGpu(config, ElementType::kBfloat16, /*order=*/0, limit);
  const auto report = m.model->ForwardBackward(BatchOf(config, 1), 1.0 / 104, 0.05);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kResourceExhausted) << report.status();
}

TEST(CudaTrainingTest, WrittenValuesReachTheNextPass) {
  const ModelConfig config = TwoLayers();
  TestModel m = OnGpu(config, ElementType::kBfloat16);
  const MicroBatch batch = BatchOf(config, 0);
  const auto before = m.model->Loss(batch, 1.0);
  ASSERT_TRUE(before.ok()) << before.status();
  std::vector<float> values = m.Host(m.model->values());
  for (float& value : values) value *= 0.5F;
  ASSERT_TRUE(m.model->store()->Write(0, values).ok());
  const auto after = m.model->Loss(batch, 1.0);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_NE(before->loss_sum, after->loss_sum);
}

}  // namespace
}  // namespace sparsebalance::model
