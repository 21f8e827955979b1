// Adapters on disk: PEFT's layout, what is refused, and merging.
#include "worker/model_io/peft_adapter.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/data_test_util.h"
#include "worker/model/model_test_util.h"
#include "worker/model/random.h"

namespace sparsebalance::model_io {
namespace {

using model::ModelConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As PEFT 0.13 writes it.
constexpr char kFromPeft[] = R"({
  "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "Qwen/Qwen2.5-0.5B",
  "bias": "none", "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
  "loftq_config": {}, "lora_alpha": 32, "lora_dropout": 0.05, "megatron_config": null,
  "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA", "r": 8,
  "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"],
  "task_type": "CAUSAL_LM", "use_dora": false, "use_rslora": false})";

ModelConfig Adapted(const char* targets = "q_proj,v_proj,down_proj") {
  ModelConfig config = model::TinyConfig();
  config.lora.rank = 3;
  config.lora.alpha = 6;
  config.lora.targets = *model::ParseProjections(targets);
  return config;
}

class AdapterFolderTest : public ::testing::Test {
 protected:
  void Save(const model::TestModel& m, const ModelConfig& config,
            std::optional<ElementType> type = std::nullopt) {
    const absl::Status status =
        SaveAdapter(path_, {config.lora, "/models/base"},
                    SourceOf(m.backend.get(), m.model->store()->adapter_parameters()), type);
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::StatusOr<HfWeights> Open() const {
    return HfWeights::OpenFile(path_ + "/" + kAdapterWeightsFile);
  }

  data_testing::TempFolder folder_;
  const std::string path_ = folder_ / "adapter";
};

TEST_F(AdapterFolderTest, HoldsWhatPeftReads) {
  const ModelConfig config = Adapted("q_proj,down_proj");
  Save(model::MakeTrained(config), config);
  const auto json = nlohmann::json::parse(data_testing::ReadFile(path_ + "/adapter_config.json"));
  EXPECT_EQ(json.at("peft_type"), "LORA");
  EXPECT_EQ(json.at("task_type"), "CAUSAL_LM");
  EXPECT_EQ(json.at("r"), 3);
  EXPECT_TRUE(json.at("lora_alpha").is_number_integer());
  EXPECT_EQ(json.at("target_modules"), nlohmann::json({"q_proj", "down_proj"}));
  EXPECT_EQ(json.at("base_model_name_or_path"), "/models/base");
  const auto weights = Open();
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorInfo& tensor : weights->files().front().tensors()) {
    shapes[tensor.name] = tensor.shape;
  }
  const std::string layer = "base_model.model.model.layers.1.";
  EXPECT_EQ(shapes.size(), 2u * 2u * 2u);
  EXPECT_THAT(shapes[layer + "self_attn.q_proj.lora_A.weight"], ElementsAre(3, 24));
  EXPECT_THAT(shapes[layer + "self_attn.q_proj.lora_B.weight"], ElementsAre(24, 3));
  EXPECT_THAT(shapes[layer + "mlp.down_proj.lora_A.weight"], ElementsAre(3, 20));
  EXPECT_THAT(shapes[layer + "mlp.down_proj.lora_B.weight"], ElementsAre(24, 3));
}

TEST_F(AdapterFolderTest, RoundTripsToTheSameBits) {
  const ModelConfig config = Adapted("all");
  const model::TestModel made = model::MakeTrained(config);
  Save(made, config);
  const auto read = ReadAdapterConfig(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->lora.rank, 3);
  EXPECT_EQ(read->lora.alpha, 6.0F);
  EXPECT_EQ(read->lora.targets, config.lora.targets);
  EXPECT_EQ(read->base_model, "/models/base");
  const auto weights = Open();
  ASSERT_TRUE(weights.ok());
  const auto source = AdapterSourceOf(*weights, config, kPeftPrefix);
  ASSERT_TRUE(source.ok()) << source.status();
  const model::TestModel other = model::MakeModel(config);
  ASSERT_TRUE(LoadAdapters(*source, other.backend.get(), other.model->store()).ok());
  EXPECT_EQ(made.Host(made.model->values()), other.Host(other.model->values()));
}

TEST_F(AdapterFolderTest, MergingGivesAModelThatComputesTheSame) {
  const ModelConfig config = Adapted("all");
  const model::TestModel made = model::MakeTrained(config);
  const std::string merged = folder_ / "merged";
  const TensorSource source = MergedSource(
      SourceOf(made.backend.get(), made.model->store()->base_parameters()),
      SourceOf(made.backend.get(), made.model->store()->adapter_parameters()), config.lora);
  ASSERT_TRUE(SaveModel(merged, config, source, {}).ok());
  ModelConfig plain = config;
  plain.lora = {};
  const model::TestModel loaded = model::MakeModel(plain, 1, /*seed=*/99);
  const auto weights = HfWeights::Open(merged);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE(weights->CheckFits(plain, [](const std::string&) {}).ok());
  ASSERT_TRUE(weights->Load(loaded.backend.get(), loaded.model->store()).ok());
  const model::MicroBatch batch = model::RandomBatch(config, {19, 8}, 3);
  EXPECT_LT(model::RelativeDistance(*loaded.model->Logits(batch, 1), *made.model->Logits(batch, 1)),
            1e-5);
}

TEST_F(AdapterFolderTest, TensorsThatDoNotFitAreNamed) {
  const ModelConfig config = Adapted("q_proj");
  Save(model::MakeTrained(config), config);
  const auto weights = Open();
  ASSERT_TRUE(weights.ok());
  ModelConfig other = config;
  other.lora.rank = 4;
  absl::Status status = AdapterSourceOf(*weights, other, kPeftPrefix).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has shape "
                        "[3, 24], the adapters of this model need [4, 24]"));
  status = AdapterSourceOf(*weights, Adapted("q_proj,o_proj"), kPeftPrefix).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("o_proj.lora_A.weight"));
  ModelConfig fewer = config;
  fewer.num_layers = 1;
  status = AdapterSourceOf(*weights, fewer, kPeftPrefix).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("layers.1.self_attn.q_proj"));
}

TEST_F(AdapterFolderTest, AFolderWithOtherFilesIsNotReplaced) {
  std::filesystem::create_directories(path_);
  data_testing::WriteFile(path_ + "/README.md", "mine");
  const ModelConfig config = Adapted();
  const model::TestModel m = model::MakeTrained(config);
  const absl::Status status =
      SaveAdapter(path_, {config.lora, ""},
                  SourceOf(m.backend.get(), m.model->store()->adapter_parameters()), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("README.md"));
  EXPECT_EQ(data_testing::ReadFile(path_ + "/README.md"), "mine");
}

TEST(AdapterConfigTest, ReadsWhatPeftWrites) {
  const auto config = ParseAdapterConfig(kFromPeft, "adapter_config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->lora.rank, 8);
  EXPECT_EQ(config->lora.alpha, 32.0F);
  EXPECT_FLOAT_EQ(config->lora.dropout, 0.05F);
  EXPECT_EQ(model::ProjectionsText(config->lora.targets), "q_proj,v_proj");
  EXPECT_EQ(config->base_model, "Qwen/Qwen2.5-0.5B");
}

struct RefusedAdapter {
  const char* name;
  const char* change;  // a JSON object that replaces fields
  const char* message;
  absl::StatusCode code;
};
void PrintTo(const RefusedAdapter& r, std::ostream* out) { *out << r.name; }

class RefusedAdapterTest : public ::testing::TestWithParam<RefusedAdapter> {};

TEST_P(RefusedAdapterTest, NamesTheFieldAndItsValue) {
  auto json = nlohmann::json::parse(kFromPeft);
  json.update(nlohmann::json::parse(GetParam().change));
  const absl::Status status = ParseAdapterConfig(json.dump(), "the config").status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the config: "));
}

constexpr auto kBadField = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupportedFeature = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedAdapterTest,
    ::testing::Values(
        RefusedAdapter{"kind", R"({"peft_type":"IA3"})", R"(peft_type is "IA3")",
                       kUnsupportedFeature},
        RefusedAdapter{"no_kind", R"({"peft_type":null})", "peft_type is missing", kBadField},
        RefusedAdapter{"dora", R"({"use_dora":true})", "use_dora is true", kUnsupportedFeature},
        RefusedAdapter{"rslora", R"({"use_rslora":true})", "use_rslora is true",
                       kUnsupportedFeature},
        RefusedAdapter{"bias", R"({"bias":"lora_only"})", R"(bias is "lora_only")",
                       kUnsupportedFeature},
        RefusedAdapter{"saved", R"({"modules_to_save":["lm_head"]})",
                       R"(modules_to_save is ["lm_head"])", kUnsupportedFeature},
        RefusedAdapter{"ranks", R"({"rank_pattern":{"q_proj":4}})", "rank_pattern is",
                       kUnsupportedFeature},
        RefusedAdapter{"layers", R"({"layers_to_transform":[0]})", "layers_to_transform is [0]",
                       kUnsupportedFeature},
        RefusedAdapter{"pattern", R"({"target_modules":".*_proj"})", "target_modules is",
                       kUnsupportedFeature},
        RefusedAdapter{"module", R"({"target_modules":["q_proj","lm_head"]})",
                       R"(target_modules is "lm_head")", kUnsupportedFeature},
        RefusedAdapter{"group", R"({"target_modules":["mlp"]})", R"(target_modules is "mlp")",
                       kUnsupportedFeature},
        RefusedAdapter{"no_modules", R"({"target_modules":null})", "target_modules is missing",
                       kBadField},
        RefusedAdapter{"empty_modules", R"({"target_modules":[]})", "no target projection",
                       kBadField},
        RefusedAdapter{"rank", R"({"r":0})", "r is 0", kBadField},
        RefusedAdapter{"alpha", R"({"lora_alpha":-1})", "lora_alpha is -1", kBadField},
        RefusedAdapter{"dropout", R"({"lora_dropout":1.0})", "dropout is 1", kBadField},
        RefusedAdapter{"base", R"({"base_model_name_or_path":3})", "base_model_name_or_path is 3",
                       kBadField}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace sparsebalance::model_io
