#include "worker/eval/evaluator.h"

#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"
#include "worker/model/adamw.h"
#include "worker/model/model_test_util.h"

namespace sparsebalance::eval {
namespace {

using model::MicroBatch;
using model::ModelConfig;
using model::TokenScore;

RecallTaskOptions SmallTask() {
  RecallTaskOptions task;
  task.lengths = {32, 48, 64};
  task.distances = {{0, 0}, {1, 1}, {2, 3}};
  task.keys = 4;
  return task;
}

ModelConfig SmallConfig(const RecallTaskOptions& task) {
  ModelConfig config;
  config.vocab_size = static_cast<int>(task.VocabularySize());
  config.hidden_size = 32;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 32;
  config.rope_theta = 1e6F;
  config.initializer_range = 0.18F;
  config.tie_embeddings = false;
  config.block_tokens = static_cast<int>(task.block_tokens);
  return config;
}

// Scores every supervised position by a rule instead of a model.
Scorer ScoreByRule(std::function<TokenScore(const MicroBatch&, int64_t)> rule) {
  return [rule](const MicroBatch& batch) -> absl::StatusOr<std::vector<TokenScore>> {
    std::vector<TokenScore> scores;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      if (batch.loss_weights[t] == 0) continue;
      scores.push_back(rule(batch, static_cast<int64_t>(t)));
    }
    return scores;
  };
}

// Looks the answer up: the pair of the queried key in the query's own sequence, within `reach`
// blocks.
Scorer Oracle(const RecallTaskOptions& task, int64_t reach) {
  return ScoreByRule([task, reach](const MicroBatch& batch, int64_t t) {
    const int64_t key = batch.tokens[t] - task.Query(0);
    size_t s = 0;
    while (batch.cu_seqlens[s + 1] <= t) ++s;
    const int64_t start = batch.cu_seqlens[s];
    bool correct = false;
    for (int64_t p = start; p < t; ++p) {
      const int64_t distance = (t - start) / task.block_tokens - (p - start) / task.block_tokens;
      const int64_t value = batch.tokens[p] - task.Pair(key, 0);
      if (distance > reach || value < 0 || value >= task.values) continue;
      correct = batch.targets[t] == task.Value(value);
    }
    return TokenScore{.position = t, .loss = correct ? 0.0 : 1.0, .correct = correct};
  });
}

TEST(EvaluatorTest, AnOracleThatSeesEverythingIsAlwaysRight) {
  const RecallTaskOptions task;
  const auto result = EvaluateRecall(Oracle(task, 1000), task, 50, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->total.accuracy(), 1.0);
  EXPECT_EQ(result->total.perplexity(), 1.0);
  for (const Bucket& bucket : result->buckets) {
    EXPECT_GT(bucket.tally.tokens(), 0) << bucket.name;
    EXPECT_EQ(bucket.tally.accuracy(), 1.0) << bucket.name;
  }
}

TEST(EvaluatorTest, AnOracleOfShortReachIsRightExactlyAtTheDistancesWithinIt) {
  const RecallTaskOptions task;
  const auto result = EvaluateRecall(Oracle(task, 3), task, 50, {});
  ASSERT_TRUE(result.ok()) << result.status();
  for (size_t r = 0; r < task.distances.size(); ++r) {
    EXPECT_EQ(result->buckets[r].tally.accuracy(), task.distances[r].last <= 3 ? 1.0 : 0.0)
        << result->buckets[r].name;
  }
  EXPECT_LT(result->beyond_own_block.accuracy(), result->total.accuracy());
  EXPECT_EQ(result->beyond_own_block.tokens() + result->buckets[0].tally.tokens(),
            result->total.tokens());
}

TEST(EvaluatorTest, HowSequencesArePackedIntoMicroBatchesDoesNotMatter) {
  const RecallTaskOptions task = SmallTask();
  const model::TestModel test = model::MakeModel(SmallConfig(task));
  const auto packed = EvaluateRecall(ScoreBy(*test.model), task, 40, {.budget_blocks = 2});
  const auto single = EvaluateRecall(ScoreBy(*test.model), task, 40,
                                     {.budget_blocks = 2, .max_tokens_per_micro_batch = 1});
  ASSERT_TRUE(packed.ok() && single.ok());
  EXPECT_EQ(packed->total.tokens(), single->total.tokens());
  EXPECT_EQ(packed->total.accuracy(), single->total.accuracy());
  EXPECT_NEAR(packed->total.mean_loss(), single->total.mean_loss(), 1e-6);
}

TEST(EvaluatorTest, AModelThatWasNotTrainedGuesses) {
  const RecallTaskOptions task = SmallTask();
  const model::TestModel test = model::MakeModel(SmallConfig(task));
  const auto result = EvaluateRecall(ScoreBy(*test.model), task, 200, {});
  ASSERT_TRUE(result.ok()) << result.status();
  // It does not even know that answers are values: at most one in `values` is right, but for luck.
  EXPECT_LT(result->total.accuracy(), 1.0 / static_cast<double>(task.values) + 0.1);
}

TEST(EvaluatorTest, PerplexityIsTheExponentialOfTheMeanLossThatTheModelReports) {
  const RecallTaskOptions task = SmallTask();
  const model::TestModel test = model::MakeModel(SmallConfig(task));
  const data_testing::TempFolder folder;
  ASSERT_TRUE(WriteRecallDataset(task, 30, folder / "data", false).ok());
  const auto dataset = data::IndexedDataset::Open(folder / "data");
  ASSERT_TRUE(dataset.ok()) << dataset.status();

  double loss = 0;
  double supervised = 0;
  for (uint64_t id = 0; id < dataset->size(); ++id) {
    const auto example = dataset->MakeTrainingExample(id);
    ASSERT_TRUE(example.ok());
    const MicroBatch batch{.tokens = example->tokens,
                           .targets = example->targets,
                           .loss_weights = example->loss_weights,
                           .cu_seqlens = {0, std::ssize(example->tokens)},
                           .budgets = {2},
                           .base_budgets = {2}};
    const auto report = test.model->Loss(batch, 0.0);
    ASSERT_TRUE(report.ok()) << report.status();
    loss += report->loss_sum;
    supervised += report->supervised_tokens;
  }
  const auto result = EvaluateDataset(ScoreBy(*test.model), *dataset, task.block_tokens,
                                      {.budget_blocks = 2, .length_edges = {40, 60}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(static_cast<double>(result->total.tokens()), supervised);
  EXPECT_NEAR(result->total.perplexity(), std::exp(loss / supervised),
              1e-5 * std::exp(loss / supervised));
}

TEST(EvaluatorTest, SequencesGoToTheBucketOfTheirLength) {
  RecallTaskOptions task = SmallTask();
  const data_testing::TempFolder folder;
  ASSERT_TRUE(WriteRecallDataset(task, 60, folder / "data", false).ok());
  const auto dataset = data::IndexedDataset::Open(folder / "data");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int64_t> expected(3, 0);  // supervised tokens of 32, of 48 and of 64 tokens
  for (uint64_t id = 0; id < dataset->size(); ++id) {
    expected[(*dataset->length(id) - 32) / 16] += *dataset->supervised_targets(id);
  }
  const Scorer wrong = ScoreByRule(
      [](const MicroBatch&, int64_t t) { return TokenScore{.position = t, .loss = 2}; });
  const auto result = EvaluateDataset(wrong, *dataset, 16, {.length_edges = {48, 64, 65}});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->buckets.size(), 4);
  for (size_t b = 0; b < 3; ++b) EXPECT_EQ(result->buckets[b].tally.tokens(), expected[b]);
  EXPECT_EQ(result->buckets[3].tally.tokens(), 0);
  EXPECT_EQ(result->buckets[0].name, "1-47");
  EXPECT_EQ(result->buckets[3].name, "65 and more");
  EXPECT_NEAR(result->total.perplexity(), std::exp(2.0), 1e-9);
}

TEST(EvaluatorTest, BadOptionsAndEmptyTasksAreErrors) {
  const RecallTaskOptions task = SmallTask();
  const Scorer oracle = Oracle(task, 3);
  EXPECT_EQ(EvaluateRecall(oracle, task, 0, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EvaluateRecall(oracle, task, 1, {.budget_blocks = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EvaluateRecall(oracle, task, 1, {.length_edges = {8, 8}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(EvaluatorTest, AFewStepsOfTrainingLowerTheLossOnTheTask) {
  const RecallTaskOptions task = SmallTask();
  const model::TestModel test = model::MakeModel(SmallConfig(task), /*threads=*/2);
  auto adamw = model::AdamW::Create({.weight_decay = 0}, test.model->store(), test.backend.get());
  ASSERT_TRUE(adamw.ok()) << adamw.status();
  RecallTaskOptions held_out = task;
  held_out.seed = 77;
  const auto before = EvaluateRecall(ScoreBy(*test.model), held_out, 100, {.budget_blocks = 2});
  ASSERT_TRUE(before.ok()) << before.status();
  uint64_t index = 0;
  for (int step = 0; step < 60; ++step) {
    MicroBatch batch;
    batch.cu_seqlens = {0};
    for (int s = 0; s < 16; ++s) {
      const RecallSequence sequence = MakeRecallSequence(task, index++);
      batch.tokens.insert(batch.tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      batch.targets.insert(batch.targets.end(), sequence.tokens.begin() + 1, sequence.tokens.end());
      batch.targets.push_back(0);
      batch.loss_weights.insert(batch.loss_weights.end(), sequence.mask.begin() + 1,
                                sequence.mask.end());
      batch.loss_weights.push_back(0);
      batch.cu_seqlens.push_back(std::ssize(batch.tokens));
      batch.budgets.push_back(2);
      batch.base_budgets.push_back(2);
    }
    const double supervised =
        std::accumulate(batch.loss_weights.begin(), batch.loss_weights.end(), 0.0);
    ASSERT_TRUE(test.model->ZeroGrads().ok());
    ASSERT_TRUE(test.model->ForwardBackward(batch, 1 / supervised, 0.1).ok());
    ASSERT_TRUE((*adamw)->Step(0.01, 1.0).ok());
  }
  const auto after = EvaluateRecall(ScoreBy(*test.model), held_out, 100, {.budget_blocks = 2});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_LT(after->total.mean_loss(), 0.8 * before->total.mean_loss());
}

TEST(TallyTest, ErrorsAreOverSequencesAndZeroWhereNothingVaries) {
  Tally tally;
  EXPECT_EQ(tally.perplexity(), 0);
  tally.AddSequence(0, 0, 0);
  EXPECT_EQ(tally.sequences(), 0);
  tally.AddSequence(10, 20, 5);
  EXPECT_EQ(tally.accuracy_error(), 0);  // one sequence says nothing about others
  tally.AddSequence(30, 60, 15);
  EXPECT_DOUBLE_EQ(tally.mean_loss(), 2);
  EXPECT_DOUBLE_EQ(tally.accuracy(), 0.5);
  EXPECT_NEAR(tally.accuracy_error(), 0, 1e-9);
  EXPECT_NEAR(tally.mean_loss_error(), 0, 1e-9);

  // Of sequences of one token each it is the error of a proportion.
  Tally single;
  for (int i = 0; i < 100; ++i) single.AddSequence(1, 1, i % 4 == 0 ? 1 : 0);
  EXPECT_NEAR(single.accuracy_error(), std::sqrt(0.25 * 0.75 / 99), 1e-12);
}

}  // namespace
}  // namespace sparsebalance::eval
