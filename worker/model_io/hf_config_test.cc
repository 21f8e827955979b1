// config.json: what comes back, and what is refused by name.
#include "worker/model_io/hf_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/model/model_test_util.h"

namespace sparsebalance::model_io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using model::ModelConfig;

// What is published with Qwen2.5-0.5B.
Json Published() {
  return Json::parse(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
    "use_sliding_window": false, "vocab_size": 151936})");
}

TEST(HfConfigTest, APublishedConfigIsRead) {
  const auto config = ParseHfConfig(Published().dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 151936);
  EXPECT_EQ(config->hidden_size, 896);
  EXPECT_EQ(config->num_layers, 24);
  EXPECT_EQ(config->num_heads, 14);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->intermediate_size, 4864);
  EXPECT_EQ(config->rope_theta, 1e6F);
  EXPECT_EQ(config->rms_norm_eps, 1e-6F);
  EXPECT_EQ(config->initializer_range, 0.02F);
  EXPECT_EQ(config->max_position_embeddings, 32768);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->block_tokens, ModelConfig().block_tokens);
}

TEST(HfConfigTest, WhatIsWrittenIsReadBack) {
  ModelConfig config = model::TinyConfig();
  config.rope_theta = 12345.678F;
  config.rms_norm_eps = 3e-7F;
  config.tie_embeddings = false;
  config.max_position_embeddings = 77;
  config.coverage_sample_stride = 3;
  const std::string text = FormatHfConfig(config, ElementType::kBF16);
  const auto back = ParseHfConfig(text, "config.json");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(FormatHfConfig(*back, ElementType::kBF16), text);
  EXPECT_EQ(back->rope_theta, config.rope_theta);
  EXPECT_EQ(back->rms_norm_eps, config.rms_norm_eps);
  EXPECT_EQ(back->block_tokens, config.block_tokens);
  EXPECT_EQ(back->coverage_sample_stride, 3);
  EXPECT_EQ(back->head_dim, config.head_dim);
  EXPECT_THAT(text, AllOf(HasSubstr("\"rms_norm_eps\": 3e-07"),
                          HasSubstr("\"torch_dtype\": \"bfloat16\"")));
}

TEST(HfConfigTest, RotarySettingsOfNewerVersionsAreRead) {
  Json json = Published();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5000.0}};
  json["layer_types"] = Json::array({"full_attention", "full_attention"});
  const auto config = ParseHfConfig(json.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 5000.0F);
}

struct Refused {
  const char* name;
  const char* patch;  // a JSON merge patch: null takes a field away
  const char* message;
  absl::StatusCode code;
};

void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.name; }

class RefusedConfigTest : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedConfigTest, NamesFieldAndValue) {
  Json json = Published();
  json.merge_patch(Json::parse(GetParam().patch));
  const auto config = ParseHfConfig(json.dump(), "DIR/config.json");
  EXPECT_EQ(config.status().code(), GetParam().code) << config.status();
  EXPECT_THAT(config.status().message(),
              AllOf(HasSubstr("DIR/config.json"), HasSubstr(GetParam().message)));
}

constexpr auto kBad = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedConfigTest,
    ::testing::Values(
        Refused{"architecture", R"({"architectures":["LlamaForCausalLM"]})",
                R"(architectures is ["LlamaForCausalLM"])", kUnsupported},
        Refused{"two_architectures", R"({"architectures":["Qwen2ForCausalLM","B"]})",
                "architectures is", kUnsupported},
        Refused{"model_type", R"({"model_type":"qwen3"})", R"(model_type is "qwen3")",
                kUnsupported},
        Refused{"no_architecture", R"({"architectures":null,"model_type":null})",
                "architectures is missing", kBad},
        Refused{"sliding_window", R"({"use_sliding_window":true})", "use_sliding_window is true",
                kUnsupported},
        Refused{"sliding_layers", R"({"layer_types":["full_attention","sliding_attention"]})",
                R"(layer_types is "sliding_attention")", kUnsupported},
        Refused{"rope_scaling", R"({"rope_scaling":{"type":"yarn","factor":4.0}})",
                R"(rope_scaling is {"factor":4.0,"type":"yarn"})", kUnsupported},
        Refused{"rope_parameters", R"({"rope_parameters":{"rope_type":"linear","factor":2.0}})",
                "rope_parameters is", kUnsupported},
        Refused{"rope_factor", R"({"rope_scaling":{"factor":2.0}})", "without a factor",
                kUnsupported},
        Refused{"rope_list", R"({"rope_scaling":[2]})", "rope_scaling is [2]", kBad},
        Refused{"activation", R"({"hidden_act":"gelu"})", R"(hidden_act is "gelu")", kUnsupported},
        Refused{"dropout", R"({"attention_dropout":0.1})", "attention_dropout is 0.1",
                kUnsupported},
        Refused{"quantized", R"({"quantization_config":{"bits":4}})",
                R"(quantization_config is {"bits":4})", kUnsupported},
        Refused{"no_bias", R"({"attention_bias":false})", "attention_bias is false", kUnsupported},
        Refused{"no_vocabulary", R"({"vocab_size":null})", "vocab_size is missing", kBad},
        Refused{"no_hidden", R"({"hidden_size":null})", "hidden_size is missing", kBad},
        Refused{"no_layers", R"({"num_hidden_layers":null})", "num_hidden_layers is missing", kBad},
        Refused{"no_heads", R"({"num_attention_heads":null})", "num_attention_heads is missing",
                kBad},
        Refused{"no_kv_heads", R"({"num_key_value_heads":null})", "num_key_value_heads is missing",
                kBad},
        Refused{"no_ffn", R"({"intermediate_size":null})", "intermediate_size is missing", kBad},
        Refused{"no_theta", R"({"rope_theta":null})", "rope_theta is missing", kBad},
        Refused{"no_epsilon", R"({"rms_norm_eps":null})", "rms_norm_eps is missing", kBad},
        Refused{"no_tie", R"({"tie_word_embeddings":null})", "tie_word_embeddings is missing",
                kBad},
        Refused{"text", R"({"hidden_size":"896"})", R"(hidden_size is "896", must be)", kBad},
        Refused{"negative", R"({"num_hidden_layers":-1})", "num_hidden_layers is -1", kBad},
        Refused{"zero", R"({"vocab_size":0})", "vocab_size is 0", kBad},
        Refused{"huge", R"({"vocab_size":4294967297})", "vocab_size is 4294967297", kBad},
        Refused{"fraction", R"({"num_attention_heads":1.5})", "num_attention_heads is 1.5", kBad},
        Refused{"epsilon", R"({"rms_norm_eps":-1e-6})", "rms_norm_eps is -1e-06", kBad},
        Refused{"theta_beyond_float", R"({"rope_theta":1e300})", "rope_theta is 1e+300", kBad},
        Refused{"tie_number", R"({"tie_word_embeddings":1})", "tie_word_embeddings is 1", kBad},
        Refused{"heads_do_not_divide", R"({"num_attention_heads":13})", "num_heads 13", kBad},
        Refused{"odd_head", R"({"head_dim":63})", "head_dim is 63", kBad},
        Refused{"ours", R"({"sparsebalance":{"block_tokens":0}})",
                "sparsebalance: block_tokens is 0", kBad}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(HfConfigTest, WhatIsNotAJsonObjectIsRefused) {
  for (const char* text : {"", "[1]", "{", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(ParseHfConfig(text, "c").status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace sparsebalance::model_io
