#include "worker/model/config.h"

#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace sparsebalance::model {

absl::Status ModelConfig::Validate() const {
  struct Field {
    const char* name;
    int value;
  };
  for (const Field& f :
       {Field{"vocab_size", vocab_size}, Field{"hidden_size", hidden_size},
        Field{"num_layers", num_layers}, Field{"num_heads", num_heads},
        Field{"num_kv_heads", num_kv_heads}, Field{"intermediate_size", intermediate_size},
        Field{"block_tokens", block_tokens},
        Field{"coverage_sample_stride", coverage_sample_stride}}) {
    if (f.value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("model config: ", f.name, " is ", f.value, ", must be at least 1"));
    }
  }
  if (num_heads % num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model config: num_heads ", num_heads, " is no multiple of num_kv_heads ", num_kv_heads));
  }
  if (head_dim == 0 && hidden_size % num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("model config: hidden_size ", hidden_size,
                                                   " is no multiple of num_heads ", num_heads,
                                                   "; change one or set head_dim"));
  }
  if (HeadDim() < 2 || HeadDim() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model config: head_dim is ", HeadDim(),
                     ", must be even and at least 2 for rotary embeddings"));
  }
  struct Positive {
    const char* name;
    float value;
  };
  for (const Positive& f :
       {Positive{"rope_theta", rope_theta}, Positive{"rms_norm_eps", rms_norm_eps},
        Positive{"initializer_range", initializer_range}}) {
    if (!std::isfinite(f.value) || f.value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("model config: ", f.name, " is ", f.value, ", must be finite and above 0"));
    }
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model config: dropout is ", dropout, ", must lie in [0, 1)"));
  }
  return lora.Validate();
}

}  // namespace sparsebalance::model
