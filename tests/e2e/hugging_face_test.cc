// Models in and out of the real programs: --init-from, --export, and the verbs convert and inspect.
#include <algorithm>
#include <filesystem>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"
#include "worker/model/model_test_util.h"
#include "worker/model_io/hf_checkpoint.h"

namespace sparsebalance::e2e {
namespace {

using data_testing::ReadFile;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kUsage = 2;

class HuggingFaceTest : public ::testing::Test {
 protected:
  // Trains a model once, standalone, with a checkpoint and an export.
  static void SetUpTestSuite() {
    cluster_ = new Cluster;
    cluster_->PackData(20, 20, 300);
    const Ran ran = Train({"--steps", "3", "--export", Path("exported"), "--checkpoint-dir",
                           Path("checkpoints"), "--rope-theta", "50000"});
    ASSERT_EQ(ran.code, 0) << ran.output;
    ASSERT_THAT(ran.output, HasSubstr("the model is in " + Path("exported")));
  }
  static void TearDownTestSuite() { delete cluster_; }

  static std::string Path(const std::string& name) { return cluster_->folder() / name; }
  static std::string Checkpoint() { return Path("checkpoints/step-00000003"); }

  // Two ranks in one process, without a coordinator.
  static Ran Train(std::vector<std::string> flags) {
    const std::vector<std::string> standalone = {"--coordinator", "",        "--policy",
                                                 "length",        "--ranks", "0,1"};
    flags.insert(flags.end(), standalone.begin(), standalone.end());
    return RunProgram(cluster_->WorkerArguments(2, 0, flags));
  }
  // From a model on disk: without the flags of its shape.
  static Ran TrainFrom(const std::string& folder, const std::vector<std::string>& more) {
    std::vector<std::string> argv = {Program("sparsebalance-worker"),
                                     "--coordinator",
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
                                     "--output",
                                     "",
                                     "--init-from",
                                     folder};
    argv.insert(argv.end(), more.begin(), more.end());
    return RunProgram(argv);
  }

  static void ExpectSameWeights(const std::string& a, const std::string& b) {
    const std::string bytes = ReadFile(a + "/model.safetensors");
    EXPECT_FALSE(bytes.empty()) << a;
    EXPECT_TRUE(bytes == ReadFile(b + "/model.safetensors")) << a << " and " << b;
  }

  static Cluster* cluster_;
};

Cluster* HuggingFaceTest::cluster_ = nullptr;

TEST_F(HuggingFaceTest, InspectShowsWhatWasExported) {
  const Ran ran = Verb({"inspect", Path("exported"), "--json"});
  ASSERT_EQ(ran.code, 0) << ran.output;
  const json shown = json::parse(ran.output);
  EXPECT_EQ(shown.at("form"), "Hugging Face folder");
  EXPECT_FALSE(shown.contains("problem")) << shown.at("problem");
  EXPECT_EQ(shown.at("config").at("hidden_size"), 32);
  EXPECT_EQ(shown.at("config").at("rope_theta"), 50000.0);
  EXPECT_EQ(shown.at("config").at("sparsebalance").at("block_tokens"), 32);
  EXPECT_EQ(shown.at("tensors_by_dtype").at("F32"), shown.at("tensors").size());
  EXPECT_EQ(shown.at("bytes"), shown.at("parameters").get<uint64_t>() * 4);
  const Ran table = Verb({"inspect", Path("exported")});
  EXPECT_THAT(table.output,
              AllOf(HasSubstr("Qwen2ForCausalLM"), HasSubstr("2 layers, hidden 32"),
                    HasSubstr("model.layers.1.mlp.down_proj.weight"), HasSubstr("[32, 64]")));
}

TEST_F(HuggingFaceTest, InspectShowsCheckpointsAndSingleFiles) {
  const json checkpoint = json::parse(Verb({"inspect", Checkpoint(), "--json"}).output);
  EXPECT_EQ(checkpoint.at("form"), "checkpoint");
  EXPECT_EQ(checkpoint.at("next_step"), 3);
  EXPECT_EQ(checkpoint.at("config").at("num_hidden_layers"), 2);
  EXPECT_FALSE(checkpoint.contains("problem"));
  const json file =
      json::parse(Verb({"inspect", Checkpoint() + "/optimizer.safetensors", "--json"}).output);
  EXPECT_EQ(file.at("parameters"), checkpoint.at("parameters").get<uint64_t>() * 2);
}

TEST_F(HuggingFaceTest, WhatIsNoModelIsRefusedByName) {
  const Ran nowhere = Verb({"inspect", Path("nowhere")});
  EXPECT_EQ(nowhere.code, kUsage);
  EXPECT_THAT(nowhere.output, HasSubstr("nowhere: no such file or folder"));
  EXPECT_THAT(Verb({"inspect", cluster_->folder().path()}).output, HasSubstr("is no model"));
  const Ran data = Verb({"inspect", cluster_->dataset() + ".bin"});
  EXPECT_EQ(data.code, kUsage);
  EXPECT_THAT(data.output, HasSubstr("data.bin is not a whole safetensors file"));
  EXPECT_EQ(Verb({"convert", "--from", Path("exported")}).code, kUsage);
  EXPECT_EQ(Verb({"convert", "--help"}).code, 0);
}

TEST_F(HuggingFaceTest, AConvertedCheckpointIsTheExportedModel) {
  const Ran ran = Verb({"convert", "--from", Checkpoint(), "--to", Path("converted")});
  ASSERT_EQ(ran.code, 0) << ran.output;
  ExpectSameWeights(Path("converted"), Path("exported"));
  EXPECT_EQ(ReadFile(Path("converted/config.json")), ReadFile(Path("exported/config.json")));
}

TEST_F(HuggingFaceTest, ShardsAndTypesConvertBackAndForth) {
  ASSERT_EQ(Verb({"convert", "--from", Path("exported"), "--to", Path("half"), "--dtype", "bf16",
                  "--max-shard-size", "10KB"})
                .code,
            0);
  EXPECT_TRUE(std::filesystem::exists(Path("half/model.safetensors.index.json")));
  const json shown = json::parse(Verb({"inspect", Path("half"), "--json"}).output);
  EXPECT_FALSE(shown.contains("problem"));
  EXPECT_EQ(shown.at("tensors_by_dtype").at("BF16"), shown.at("tensors").size());
  std::set<std::string> files;
  for (const json& tensor : shown.at("tensors")) files.insert(tensor.at("file"));
  EXPECT_GT(files.size(), 1u);
  // bfloat16 to float32 and back loses nothing; a second way through gives the same bytes.
  ASSERT_EQ(Verb({"convert", "--from", Path("half"), "--to", Path("wide"), "--dtype", "fp32"}).code,
            0);
  ASSERT_EQ(
      Verb({"convert", "--from", Path("wide"), "--to", Path("half2"), "--dtype", "bf16"}).code, 0);
  ASSERT_EQ(Verb({"convert", "--from", Path("half"), "--to", Path("half3")}).code, 0);
  ExpectSameWeights(Path("half2"), Path("half3"));
  // In place.
  ASSERT_EQ(Verb({"convert", "--from", Path("half"), "--to", Path("half")}).code, 0);
  ExpectSameWeights(Path("half"), Path("half2"));
  EXPECT_FALSE(std::filesystem::exists(Path("half/model.safetensors.index.json")));
}

TEST_F(HuggingFaceTest, ACheckpointThatDoesNotStateItsShapeOrIsDamagedIsNotConverted) {
  const std::string old = Path("old");
  std::filesystem::copy(Checkpoint(), old);
  json manifest = json::parse(ReadFile(old + "/manifest.json"));
  manifest.erase("model_config");
  data_testing::WriteFile(old + "/manifest.json", manifest.dump());
  const Ran ran = Verb({"convert", "--from", old, "--to", Path("from-old")});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_THAT(ran.output,
              AllOf(HasSubstr("did not state the model's shape"), HasSubstr("qwen2 l2")));

  std::filesystem::copy(Checkpoint() + "/manifest.json", old + "/manifest.json",
                        std::filesystem::copy_options::overwrite_existing);
  std::string bytes = ReadFile(old + "/model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  data_testing::WriteFile(old + "/model.safetensors", bytes);
  const Ran damaged = Verb({"convert", "--from", old, "--to", Path("from-old")});
  EXPECT_EQ(damaged.code, kUsage);
  EXPECT_THAT(damaged.output, HasSubstr("checksum does not fit"));
  EXPECT_FALSE(std::filesystem::exists(Path("from-old")));
}

TEST_F(HuggingFaceTest, TrainingStartsFromTheModelThatItIsGiven) {
  // Without a learning rate the first step changes nothing.
  const Ran still =
      TrainFrom(Path("exported"), {"--steps", "1", "--learning-rate", "0", "--min-learning-rate",
                                   "0", "--export", Path("still")});
  ASSERT_EQ(still.code, 0) << still.output;
  ExpectSameWeights(Path("still"), Path("exported"));
  EXPECT_EQ(ReadFile(Path("still/config.json")), ReadFile(Path("exported/config.json")));
  // Flags that say the same as the model are fine.
  const Ran trained =
      TrainFrom(Path("exported"), {"--steps", "1", "--hidden-size", "32", "--export",
                                   Path("further"), "--export-dtype", "fp16"});
  ASSERT_EQ(trained.code, 0) << trained.output;
  const json shown = json::parse(Verb({"inspect", Path("further"), "--json"}).output);
  EXPECT_EQ(shown.at("config").at("torch_dtype"), "float16");
}

TEST_F(HuggingFaceTest, ACheckpointThatIsResumedWinsOverTheGivenModel) {
  const std::string checkpoints = Path("resumed");
  std::filesystem::copy(Path("checkpoints"), checkpoints, std::filesystem::copy_options::recursive);
  // Another model of the same shape; all steps are done, so the export is the checkpoint.
  ASSERT_EQ(TrainFrom(Path("exported"), {"--steps", "2", "--export", Path("other")}).code, 0);
  const Ran ran = TrainFrom(Path("other"), {"--steps", "3", "--resume", "--checkpoint-dir",
                                            checkpoints, "--export", Path("wins")});
  ASSERT_EQ(ran.code, 0) << ran.output;
  ExpectSameWeights(Path("wins"), Path("exported"));
}

TEST_F(HuggingFaceTest, FlagsThatContradictTheModelAreRefusedNamingBoth) {
  const auto refused = [&](const std::vector<std::string>& flags) {
    const Ran ran = TrainFrom(Path("exported"), flags);
    EXPECT_EQ(ran.code, kUsage) << ran.output;
    return ran.output;
  };
  EXPECT_THAT(
      refused({"--hidden-size", "64"}),
      HasSubstr("--hidden-size 64 contradicts hidden_size 32 in " + Path("exported/config.json")));
  EXPECT_THAT(refused({"--rope-theta", "10000"}),
              HasSubstr("--rope-theta 10000 contradicts rope_theta 50000"));
  EXPECT_THAT(refused({"--untie-embeddings"}), HasSubstr("contradicts tie_word_embeddings true"));
  EXPECT_THAT(refused({"--export-dtype", "fp8"}),
              AllOf(HasSubstr("--export-dtype"), HasSubstr("fp8")));
  EXPECT_THAT(TrainFrom(Path("nowhere"), {}).output, HasSubstr("nowhere/config.json"));
}

TEST_F(HuggingFaceTest, AVocabularySmallerThanTheDataSetsIsRefusedNamingBoth) {
  model::ModelConfig config = model::TinyConfig();
  config.vocab_size = 100;
  const model::TestModel made = model::MakeModel(config);
  const std::string folder = Path("small-vocabulary");
  SB_ASSERT_OK(model_io::SaveModel(
      folder, config,
      model_io::SourceOf(made.backend.get(), made.model->store()->base_parameters()), {}));
  const Ran ran = TrainFrom(folder, {});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_THAT(ran.output, AllOf(HasSubstr(cluster_->dataset()), HasSubstr("of 100"),
                                HasSubstr("--init-from " + folder)));
}

TEST_F(HuggingFaceTest, AModelThatDoesNotFitItsConfigIsRefusedBeforeTraining) {
  const std::string folder = Path("misfit");
  std::filesystem::copy(Path("exported"), folder);
  json config = json::parse(ReadFile(folder + "/config.json"));
  config["intermediate_size"] = 65;
  data_testing::WriteFile(folder + "/config.json", config.dump());
  const Ran ran = TrainFrom(folder, {});
  EXPECT_EQ(ran.code, kUsage);
  EXPECT_THAT(ran.output, HasSubstr("has shape [64, 32], the model needs [65, 32]"));
  const Ran shown = Verb({"inspect", folder});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.output, AllOf(HasSubstr("problem"), HasSubstr("[65, 32]")));
}

TEST_F(HuggingFaceTest, AFolderThatMustNotBeReplacedIsRefusedBeforeTraining) {
  const std::string folder = Path("precious");
  std::filesystem::create_directory(folder);
  data_testing::WriteFile(folder + "/notes.txt", "x");
  const Ran ran = Train({"--steps", "1", "--export", folder});
  EXPECT_EQ(ran.code, kUsage) << ran.output;
  EXPECT_THAT(ran.output, AllOf(HasSubstr("--export"), HasSubstr("holds notes.txt")));
  const Ran convert = Verb({"convert", "--from", Path("exported"), "--to", folder});
  EXPECT_EQ(convert.code, kUsage);
}

}  // namespace
}  // namespace sparsebalance::e2e
