// Low-rank adapters (Hu et al., "LoRA", 2021): a projection W of a frozen model computes
// x W^T + alpha / rank * (x A^T) B^T, and only A [rank, inputs] and B [outputs, rank] are trained.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::model {

// The projections of a layer, in the order in which they are computed.
enum class Projection { kQuery, kKey, kValue, kOutput, kGate, kUp, kDown };
inline constexpr size_t kProjections = 7;
using ProjectionSet = std::bitset<kProjections>;

// As Hugging Face names the modules: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
inline constexpr std::array<std::string_view, kProjections> kProjectionNames = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
inline std::string_view ProjectionName(Projection p) {
  return kProjectionNames[static_cast<size_t>(p)];
}

struct LoraConfig {
  int rank = 0;  // 0: no adapters, all parameters are trained
  float alpha = 16;
  float dropout = 0;  // rate on what adapters read, in training
  ProjectionSet targets;

  bool enabled() const { return rank > 0; }
  bool Targets(Projection p) const { return enabled() && targets[static_cast<size_t>(p)]; }
  float Scale() const { return alpha / static_cast<float>(rank); }

  // INVALID_ARGUMENT naming the first bad field; without adapters nothing is looked at.
  absl::Status Validate() const;
};

// "q_proj,v_proj", "all", "attention" (q, k, v, o) or "mlp" (gate, up, down), or a list of these.
// INVALID_ARGUMENT naming what is unknown.
absl::StatusOr<ProjectionSet> ParseProjections(std::string_view text);
// "q_proj,v_proj", in the order of the enum.
std::string ProjectionsText(const ProjectionSet& set);

}  // namespace sparsebalance::model
