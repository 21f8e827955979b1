#include "worker/train/model_flags.h"

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/model_io/hf_config.h"

namespace sparsebalance {

using model::ModelConfig;

void ModelFlags::Add(CLI::App& group, ModelConfig& config) {
  const auto add_int = [&](const char* flag, const char* field, int ModelConfig::*member,
                           const char* help) {
    CLI::Option* option = group.add_option(flag, config.*member, help)->capture_default_str();
    ints_.push_back({option, field, member});
    return option;
  };
  const auto add_float = [&](const char* flag, const char* field, float ModelConfig::*member,
                             const char* help) {
    CLI::Option* option = group.add_option(flag, config.*member, help)->capture_default_str();
    floats_.push_back({option, field, member});
  };
  add_int("--hidden-size", "hidden_size", &ModelConfig::hidden_size, "width");
  add_int("--layers", "num_hidden_layers", &ModelConfig::num_layers, "decoder layers");
  add_int("--heads", "num_attention_heads", &ModelConfig::num_heads, "query heads");
  add_int("--kv-heads", "num_key_value_heads", &ModelConfig::num_kv_heads, "key and value heads");
  add_int("--head-dim", "head_dim", &ModelConfig::head_dim, "0: hidden size / heads");
  add_int("--vocabulary-size", "vocab_size", &ModelConfig::vocab_size, "0: the data set's");
  add_int("--intermediate-size", "intermediate_size", &ModelConfig::intermediate_size,
          "width of the MLP");
  add_float("--rope-theta", "rope_theta", &ModelConfig::rope_theta, "base of the rotary embedding");
  add_float("--rms-norm-epsilon", "rms_norm_eps", &ModelConfig::rms_norm_eps, "epsilon of RMSNorm");
  tie_ = group.add_flag("--tie-embeddings,!--untie-embeddings", config.tie_embeddings,
                        "share the input and output embedding");
}

absl::Status ModelFlags::TakeFrom(const std::string& folder, ModelConfig& config) const {
  SB_ASSIGN_OR_RETURN(const ModelConfig theirs, model_io::ReadHfConfig(folder));
  const auto contradicts = [&](const CLI::Option* option, const std::string& given,
                               const char* field, const std::string& there) {
    return absl::InvalidArgumentError(
        absl::StrCat(option->get_name(), " ", given, " contradicts ", field, " ", there, " in ",
                     folder, "/", model_io::kConfigFile, " (--init-from); leave the flag out"));
  };
  for (const IntFlag& flag : ints_) {
    const int given = config.*flag.member;
    const int there = theirs.*flag.member;
    // 0 leaves a size open.
    if (flag.option->count() > 0 && given != 0 && given != there) {
      return contradicts(flag.option, absl::StrCat(given), flag.field, absl::StrCat(there));
    }
  }
  for (const FloatFlag& flag : floats_) {
    const float given = config.*flag.member;
    const float there = theirs.*flag.member;
    if (flag.option->count() > 0 && given != there) {
      return contradicts(flag.option, absl::StrCat(given), flag.field, absl::StrCat(there));
    }
  }
  if (tie_->count() > 0 && config.tie_embeddings != theirs.tie_embeddings) {
    return contradicts(tie_, config.tie_embeddings ? "true" : "false", "tie_word_embeddings",
                       theirs.tie_embeddings ? "true" : "false");
  }
  // A folder states what the model is, not how it is trained.
  const ModelConfig given = config;
  config = theirs;
  config.activation_checkpointing = given.activation_checkpointing;
  config.dropout = given.dropout;
  config.lora = given.lora;
  return absl::OkStatus();
}

}  // namespace sparsebalance
