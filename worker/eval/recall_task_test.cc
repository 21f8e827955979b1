#include "worker/eval/recall_task.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"
#include "worker/data/indexed_dataset.h"

namespace sparsebalance::eval {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(RecallTaskTest, TheSameSeedGivesTheSameSequencesAndAnotherSeedGivesOthers) {
  const RecallTaskOptions task;
  RecallTaskOptions other = task;
  other.seed = task.seed + 1;
  for (uint64_t index = 0; index < 20; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    EXPECT_EQ(sequence.tokens, MakeRecallSequence(task, index).tokens);
    EXPECT_NE(sequence.tokens, MakeRecallSequence(other, index).tokens);
    EXPECT_NE(sequence.tokens, MakeRecallSequence(task, index + 1).tokens);
  }
}

TEST(RecallTaskTest, EveryAnswerIsTheValueOfTheOnlyPairOfItsKeyAtTheStatedDistance) {
  const RecallTaskOptions task;
  for (uint64_t index = 0; index < 50; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    for (const RecallQuery& query : sequence.queries) {
      const int64_t key = sequence.tokens[query.position] - task.Query(0);
      const int64_t value = sequence.tokens[query.position + 1] - task.Value(0);
      EXPECT_EQ(sequence.tokens[query.pair_position], task.Pair(key, value));
      EXPECT_LT(query.pair_position, query.position);
      EXPECT_EQ(query.distance_blocks,
                query.position / task.block_tokens - query.pair_position / task.block_tokens);
      // The key stands nowhere else, neither in a pair nor in a query.
      EXPECT_EQ(std::count_if(sequence.tokens.begin(), sequence.tokens.end(),
                              [&](int32_t token) {
                                return token == task.Query(key) || (token >= task.Pair(key, 0) &&
                                                                    token < task.Pair(key + 1, 0));
                              }),
                2);
    }
  }
}

TEST(RecallTaskTest, OnlyAnswersAreSupervisedAndQueriesAscend) {
  const RecallTaskOptions task;
  for (uint64_t index = 0; index < 50; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    std::vector<uint8_t> answers(sequence.tokens.size(), 0);
    for (const RecallQuery& query : sequence.queries) answers[query.position + 1] = 1;
    EXPECT_EQ(sequence.mask, answers);
    EXPECT_TRUE(std::is_sorted(
        sequence.queries.begin(), sequence.queries.end(),
        [](const RecallQuery& a, const RecallQuery& b) { return a.position < b.position; }));
  }
}

TEST(RecallTaskTest, AllWantedDistancesOccurAndNoOthers) {
  RecallTaskOptions task;
  task.distances = {{1, 1}, {4, 7}, {16, 31}};
  std::map<int64_t, int> count;
  for (uint64_t index = 0; index < 200; ++index) {
    for (const RecallQuery& query : MakeRecallSequence(task, index).queries) {
      ++count[query.distance_blocks];
    }
  }
  for (const auto& entry : count) {
    const int64_t found = entry.first;
    EXPECT_TRUE(
        std::any_of(task.distances.begin(), task.distances.end(),
                    [&](const DistanceRange& r) { return found >= r.first && found <= r.last; }))
        << found;
  }
  for (const int64_t distance : {1, 4, 5, 6, 7, 16, 24}) EXPECT_GT(count[distance], 0) << distance;
}

TEST(RecallTaskTest, LengthsAreThoseAskedForAlsoWhereTheLastBlockIsShort) {
  RecallTaskOptions task;
  task.lengths = {1, 16, 17, 50, 100};
  std::set<size_t> seen;
  for (uint64_t index = 0; index < 100; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    seen.insert(sequence.tokens.size());
    EXPECT_EQ(sequence.mask.size(), sequence.tokens.size());
  }
  EXPECT_EQ(seen, (std::set<size_t>{1, 16, 17, 50, 100}));
}

TEST(RecallTaskTest, TokensAreWithinTheVocabulary) {
  RecallTaskOptions task;
  task.values = 7;
  for (uint64_t index = 0; index < 50; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    EXPECT_THAT(sequence.tokens,
                Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(task.VocabularySize()))));
  }
}

TEST(RecallTaskTest, ImpossibleTasksAreRefusedByName) {
  const auto message = [](const std::function<void(RecallTaskOptions&)>& change) {
    RecallTaskOptions task;
    change(task);
    const absl::Status status = task.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_TRUE(RecallTaskOptions().Validate().ok());
  EXPECT_THAT(message([](RecallTaskOptions& t) { t.keys = 31; }), HasSubstr("there are 31 keys"));
  EXPECT_THAT(message([](RecallTaskOptions& t) { t.block_tokens = 4; }), HasSubstr("no room"));
  EXPECT_THAT(message([](RecallTaskOptions& t) { t.lengths.clear(); }), HasSubstr("no length"));
  EXPECT_THAT(message([](RecallTaskOptions& t) { t.lengths = {64, 0}; }), HasSubstr("length is 0"));
  EXPECT_THAT(message([](RecallTaskOptions& t) { t.values = 0; }), HasSubstr("values is 0"));
}

TEST(RecallTaskTest, DistancesAreReadAsRangesAndNonsenseIsNamed) {
  EXPECT_EQ(*ParseDistances("0,1,2-3,16-31"),
            (std::vector<DistanceRange>{{0, 0}, {1, 1}, {2, 3}, {16, 31}}));
  EXPECT_EQ(DistancesText(*ParseDistances("0,1,2-3,16-31")), "0,1,2-3,16-31");
  EXPECT_THAT(std::string(ParseDistances("0,x").status().message()), HasSubstr("\"x\""));
  EXPECT_THAT(std::string(ParseDistances("3-2").status().message()), HasSubstr("\"3-2\""));
  EXPECT_THAT(std::string(ParseDistances("2-3,3").status().message()), HasSubstr("ascending"));
  EXPECT_FALSE(ParseDistances("").ok());
  EXPECT_FALSE(ParseDistances("1-2-3").ok());
}

TEST(RecallTaskTest, ADatasetOfTheTaskHoldsTheSameSequencesAndCountsOnlyAnswers) {
  const data_testing::TempFolder folder;
  const RecallTaskOptions task;
  ASSERT_TRUE(WriteRecallDataset(task, 10, folder / "recall", /*overwrite=*/false).ok());
  const auto dataset = data::IndexedDataset::Open(folder / "recall");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->size(), 10);
  EXPECT_EQ(dataset->metadata()->vocabulary_size, task.VocabularySize());
  for (uint64_t index = 0; index < 10; ++index) {
    const RecallSequence sequence = MakeRecallSequence(task, index);
    EXPECT_EQ(*dataset->Tokens(index), sequence.tokens);
    EXPECT_EQ(*dataset->supervised_targets(index), std::ssize(sequence.queries));
  }
  EXPECT_EQ(WriteRecallDataset(task, 10, folder / "recall", false).code(),
            absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace sparsebalance::eval
