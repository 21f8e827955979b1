// From a generated data set through training to an evaluation, by the programs themselves.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"

namespace sparsebalance::e2e {
namespace {

using ::testing::HasSubstr;

// The flags of the model's shape, alike for training and evaluation.
const std::vector<std::string> kModel = {
    "--block-tokens", "16", "--hidden-size", "32",      "--layers",  "1",  "--heads", "2",
    "--kv-heads",     "2",  "--rope-theta",  "1000000", "--backend", "cpu"};

class EvalTest : public ::testing::Test {
 protected:
  std::string Worker(std::vector<std::string> arguments, int expected_code) {
    arguments.insert(arguments.begin(), Program("sparsebalance-worker"));
    ChildProcess worker(std::move(arguments));
    EXPECT_EQ(worker.Wait(), expected_code) << worker.Output();
    return worker.Output();
  }
  std::string Eval(const std::vector<std::string>& more, int expected_code) {
    std::vector<std::string> arguments = {"eval", checkpoints()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Worker(std::move(arguments), expected_code);
  }
  void Train() {
    Worker({"recall-data", "--output", dataset(), "--sequences", "64"}, 0);
    std::vector<std::string> arguments = {
        "--coordinator", "",        "--policy", "length",           "--dataset",
        dataset(),       "--steps", "3",        "--checkpoint-dir", checkpoints(),
        "--output",      "",        "--quiet"};
    arguments.insert(arguments.end(), kModel.begin(), kModel.end());
    Worker(std::move(arguments), 0);
  }
  std::string dataset() const { return folder_ / "recall"; }
  std::string checkpoints() const { return folder_ / "checkpoints"; }

  data_testing::TempFolder folder_;
};

TEST_F(EvalTest, ATrainedCheckpointIsScoredByLengthAndByDistance) {
  Train();
  const std::string text = Eval({"--dataset", dataset(), "--recall", "--budget", "4"}, 0);
  EXPECT_THAT(text, HasSubstr("step 3, budget 4"));
  EXPECT_THAT(text, HasSubstr("Perplexity by length"));
  EXPECT_THAT(text, HasSubstr("own block"));
  EXPECT_THAT(text, HasSubstr("16-31"));

  // One step's folder will do as well, and both say the same.
  const nlohmann::json json =
      nlohmann::json::parse(Worker({"eval", checkpoints() + "/step-00000003", "--recall", "--json",
                                    "--budget", "dense", "--recall-sequences", "20"},
                                   0));
  EXPECT_EQ(json.at("step"), 3);
  EXPECT_FALSE(json.contains("perplexity"));
  int64_t queries = 0;
  for (const auto& bucket : json.at("recall").at("buckets")) {
    queries += bucket.at("tokens").get<int64_t>();
  }
  EXPECT_EQ(json.at("recall").at("total").at("tokens"), queries);
  EXPECT_GT(queries, 0);
}

TEST_F(EvalTest, AHuggingFaceFolderIsScoredAsTheCheckpointThatItCameFrom) {
  Train();
  Worker({"convert", "--from", checkpoints() + "/step-00000003", "--to", folder_ / "hf"}, 0);
  const auto scores = [&](const std::string& model) {
    nlohmann::json json = nlohmann::json::parse(Worker(
        {"eval", model, "--recall", "--json", "--budget", "4", "--recall-sequences", "20"}, 0));
    return json.at("recall");
  };
  EXPECT_EQ(scores(folder_ / "hf"), scores(checkpoints()));
}

TEST_F(EvalTest, BadInputIsOneMessageAndExitCodeTwo) {
  EXPECT_THAT(Eval({"--recall"}, 2), HasSubstr("there is no model in"));
  Train();
  EXPECT_THAT(Eval({}, 2), HasSubstr("--recall"));
  EXPECT_THAT(Eval({"--recall", "--budget", "none"}, 2), HasSubstr("--budget \"none\""));
  EXPECT_THAT(Eval({"--recall", "--distances", "4-"}, 2), HasSubstr("--distances"));
  EXPECT_THAT(Eval({"--recall", "--values", "5000"}, 2), HasSubstr("has a vocabulary of"));
  EXPECT_THAT(Eval({"--dataset", folder_ / "nothing"}, 2), HasSubstr("nothing"));
  EXPECT_THAT(Worker({"recall-data", "--output", dataset(), "--sequences", "1"}, 2),
              HasSubstr("recall"));
  EXPECT_THAT(Worker({"recall-data", "--output", folder_ / "new", "--keys", "3"}, 2),
              HasSubstr("3 keys"));
}

}  // namespace
}  // namespace sparsebalance::e2e
