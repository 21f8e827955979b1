#include "coordinator/simulation/modelled_profile.h"

#include "absl/strings/str_cat.h"

namespace sparsebalance::simulation {
namespace {

constexpr double kLayers = 36;
constexpr double kWidth = 2048;
constexpr double kKvWidth = 2 * 128;
constexpr double kFeedForward = 11008;
constexpr double kVocabulary = 151936;
constexpr double kOperationsPerMs = 989e12 / 1e3;
constexpr double kProductEfficiency = 0.55;
constexpr double kAttentionEfficiency = 0.35;
constexpr double kRouterEfficiency = 0.10;
constexpr double kLaunchMsPerLayer = 0.012;
// Forward and backward over forward.
constexpr double kProductPasses = 3.0;
constexpr double kAttentionPasses = 3.5;
// Scores are not differentiated, only computed.
constexpr double kRouterPasses = 1.0;

}  // namespace

v1::LatencyProfile ModelledProfile(uint32_t stages, uint32_t block_tokens) {
  const double per_layer =
      2 * (kWidth * (kWidth + 2 * kKvWidth) + kWidth * kWidth + 3 * kWidth * kFeedForward);
  const double output = 2 * kWidth * kVocabulary;
  const double layers = kLayers / stages;
  v1::LatencyProfile profile;
  profile.mutable_key()->set_namespace_("default");
  profile.mutable_key()->set_device_class("h200");
  profile.mutable_key()->set_model_class("qwen2.5-3b");
  profile.set_source(absl::StrCat(
      "modelled, not measured: Qwen2.5-3B in ", stages, stages == 1 ? " stage" : " stages",
      " on H200, from operation counts at 989 TFLOPS with ", kProductEfficiency,
      " of it for products, ", kAttentionEfficiency, " for block-sparse attention, ",
      kRouterEfficiency, " for the router"));
  v1::LatencyModel& model = *profile.mutable_model();
  model.set_constant_ms(kLaunchMsPerLayer * layers);
  const double product = kProductPasses * (per_layer * kLayers + output) / stages;
  model.set_per_token_ms(product / (kOperationsPerMs * kProductEfficiency));
  model.set_per_pair_ms(kAttentionPasses * 4 * kWidth * layers /
                        (kOperationsPerMs * kAttentionEfficiency));
  model.set_router_ms_per_token_block(kRouterPasses * 2 * kWidth * layers /
                                      (kOperationsPerMs * kRouterEfficiency));
  model.set_forward_fraction(1.0 / 3.0);
  model.set_block_tokens(block_tokens);
  return profile;
}

}  // namespace sparsebalance::simulation
