// A model is fine-tuned by low-rank adapters, from its folder to adapters that PEFT loads and to a
// merged model, by the programs themselves.
#include <cmath>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"

namespace sparsebalance::e2e {
namespace {

using data_testing::ReadFile;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kUsage = 2;

class FineTuningTest : public ::testing::Test {
 protected:
  // A base model, and adapters for it: exported at the end, and in a checkpoint.
  static void SetUpTestSuite() {
    cluster_ = new Cluster;
    cluster_->PackData(20, 20, 300);
    const Ran base = RunProgram(cluster_->WorkerArguments(
        1, 0,
        {"--coordinator", "", "--policy", "length", "--steps", "3", "--export", Path("base")}));
    ASSERT_EQ(base.code, 0) << base.output;
    const Ran tuned = Tune({"--lora-rank", "4", "--lora-alpha", "8", "--lora-targets", "all",
                            "--learning-rate", "0.01", "--lora-dropout", "0.1", "--export",
                            Path("adapter"), "--checkpoint-dir", Path("checkpoints")});
    ASSERT_EQ(tuned.code, 0) << tuned.output;
    EXPECT_THAT(tuned.output,
                AllOf(HasSubstr("in adapters of rank 4 on q_proj,k_proj,v_proj,o_proj,gate_proj,"),
                      HasSubstr("the adapters are in " + Path("adapter"))));
  }
  static void TearDownTestSuite() { delete cluster_; }

  static std::string Path(const std::string& name) { return cluster_->folder() / name; }
  static std::string Checkpoint() { return Path("checkpoints/step-00000004"); }

  // Two ranks in one process, from the base model.
  static Ran Tune(const std::vector<std::string>& more, bool from_base = true) {
    std::vector<std::string> arguments = {"--coordinator",
                                          "",
                                          "--policy",
                                          "length",
                                          "--dataset",
                                          cluster_->dataset(),
                                          "--data-parallel",
                                          "2",
                                          "--global-batch-size",
                                          "8",
                                          "--max-tokens-per-micro-batch",
                                          "512",
                                          "--steps",
                                          "4",
                                          "--output",
                                          ""};
    if (from_base) arguments.insert(arguments.end(), {"--init-from", Path("base")});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Verb(arguments);
  }

  static double Loss(const std::string& model) {
    const Ran ran = Verb({"eval", model, "--dataset", cluster_->dataset(), "--json"});
    EXPECT_EQ(ran.code, 0) << ran.output;
    return std::log(
        json::parse(ran.output).at("perplexity").at("total").at("perplexity").get<double>());
  }

  static Cluster* cluster_;
};

Cluster* FineTuningTest::cluster_ = nullptr;

TEST_F(FineTuningTest, AdaptersAloneAreExportedAndKept) {
  const auto size = [](const std::string& path) { return std::filesystem::file_size(path); };
  const uint64_t base = size(Path("base/model.safetensors"));
  EXPECT_LT(size(Path("adapter/adapter_model.safetensors")), base);
  EXPECT_LT(size(Checkpoint() + "/model.safetensors"), base);
  const json config = json::parse(ReadFile(Path("adapter/adapter_config.json")));
  EXPECT_EQ(config.at("r"), 4);
  EXPECT_EQ(config.at("lora_alpha"), 8);
  EXPECT_EQ(config.at("base_model_name_or_path"), Path("base"));

  for (const std::string& path : {Path("adapter"), Checkpoint()}) {
    const json shown = json::parse(Verb({"inspect", path, "--json"}).output);
    EXPECT_FALSE(shown.contains("problem")) << shown.at("problem");
    EXPECT_EQ(shown.at("adapter").at("r"), 4);
    EXPECT_EQ(shown.at("tensors").size(), 2u * 7u * 2u);
    EXPECT_THAT(Verb({"inspect", path}).output,
                AllOf(HasSubstr("rank 4, alpha 8"), HasSubstr(Path("base"))));
  }
}

TEST_F(FineTuningTest, AdapterCheckpointAndMergedModelAreTheSameModel) {
  const Ran converted = Verb({"convert", "--from", Checkpoint(), "--to", Path("converted")});
  ASSERT_EQ(converted.code, 0) << converted.output;
  EXPECT_EQ(ReadFile(Path("converted/adapter_model.safetensors")),
            ReadFile(Path("adapter/adapter_model.safetensors")));
  ASSERT_EQ(Verb({"convert", "--from", Checkpoint(), "--to", Path("merged"), "--merge"}).code, 0);
  ASSERT_EQ(Verb({"convert", "--from", Path("adapter"), "--to", Path("merged2"), "--merge"}).code,
            0);
  EXPECT_EQ(ReadFile(Path("merged/model.safetensors")),
            ReadFile(Path("merged2/model.safetensors")));
  EXPECT_FALSE(json::parse(Verb({"inspect", Path("merged"), "--json"}).output).contains("problem"));

  const double loss = Loss(Path("adapter"));
  EXPECT_EQ(Loss(Checkpoint()), loss);
  EXPECT_NEAR(Loss(Path("merged")), loss, 1e-5);
  EXPECT_LT(loss, Loss(Path("base")) - 0.01);  // it has learned something
}

TEST_F(FineTuningTest, AnAdapterIsTrainedFurther) {
  // Without a learning rate nothing changes.
  const Ran still = Tune({"--lora-init-from", Path("adapter"), "--learning-rate", "0",
                          "--min-learning-rate", "0", "--export", Path("still")});
  ASSERT_EQ(still.code, 0) << still.output;
  EXPECT_EQ(ReadFile(Path("still/adapter_model.safetensors")),
            ReadFile(Path("adapter/adapter_model.safetensors")));
  const Ran further = Tune({"--lora-init-from", Path("adapter"), "--learning-rate", "0.01",
                            "--export", Path("further")});
  ASSERT_EQ(further.code, 0) << further.output;
  EXPECT_LT(Loss(Path("further")), Loss(Path("adapter")));
}

TEST_F(FineTuningTest, ABaseThatHasMovedIsAskedFor) {
  std::filesystem::copy(Path("adapter"), Path("lonely"));
  json config = json::parse(ReadFile(Path("lonely/adapter_config.json")));
  config["base_model_name_or_path"] = "Qwen/Qwen2.5-0.5B";
  data_testing::WriteFile(Path("lonely/adapter_config.json"), config.dump());
  const Ran lost = Verb({"eval", Path("lonely"), "--dataset", cluster_->dataset()});
  EXPECT_EQ(lost.code, kUsage);
  EXPECT_THAT(lost.output, AllOf(HasSubstr("Qwen/Qwen2.5-0.5B"), HasSubstr("--base")));
  const Ran found =
      Verb({"eval", Path("lonely"), "--dataset", cluster_->dataset(), "--base", Path("base")});
  EXPECT_EQ(found.code, 0) << found.output;

  // The wrong one under a checkpoint's adapters is found out.
  const Ran other = RunProgram(cluster_->WorkerArguments(
      1, 0,
      {"--coordinator", "", "--policy", "length", "--steps", "1", "--export", Path("other")}));
  ASSERT_EQ(other.code, 0) << other.output;
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"eval", Checkpoint(), "--dataset", cluster_->dataset()},
        std::vector<std::string>{"convert", "--from", Checkpoint(), "--to", Path("wrong"),
                                 "--merge"}}) {
    std::vector<std::string> arguments = verb;
    arguments.insert(arguments.end(), {"--base", Path("other")});
    const Ran ran = Verb(arguments);
    EXPECT_EQ(ran.code, kUsage);
    EXPECT_THAT(ran.output, AllOf(HasSubstr(Path("other")), HasSubstr("is not the one")));
  }
}

TEST_F(FineTuningTest, BadInputIsOneMessageThatNamesTheFlag) {
  const auto refused = [](const Ran& ran) {
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    return ran.output;
  };
  EXPECT_THAT(refused(Tune({"--lora-rank", "4"}, /*from_base=*/false)), HasSubstr("--init-from"));
  EXPECT_THAT(refused(Tune({"--lora-rank", "4", "--lora-targets", "q_proj,lm_head"})),
              AllOf(HasSubstr("--lora-targets"), HasSubstr("'lm_head'")));
  EXPECT_THAT(refused(Tune({"--lora-rank", "-1"})), HasSubstr("rank is -1"));
  EXPECT_THAT(refused(Tune({"--lora-rank", "2", "--lora-init-from", Path("adapter")})),
              AllOf(HasSubstr("--lora-rank"), HasSubstr("--lora-init-from")));
  EXPECT_THAT(refused(Tune({"--lora-init-from", Path("nowhere")})), HasSubstr("nowhere"));
  EXPECT_THAT(refused(Tune({"--dropout", "1"})), HasSubstr("dropout is 1"));
  EXPECT_THAT(refused(Tune({"--weight-decay-group", "mlp"})),
              AllOf(HasSubstr("--weight-decay-group"), HasSubstr("PATTERN=VALUE")));
  EXPECT_THAT(refused(Tune({"--weight-decay-group", "*.nowhere=0.1"})), HasSubstr("'*.nowhere'"));
  EXPECT_THAT(refused(Verb({"convert", "--from", Path("base"), "--to", Path("x"), "--merge"})),
              HasSubstr("there are no adapters"));
}

}  // namespace
}  // namespace sparsebalance::e2e
