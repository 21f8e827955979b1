#include "worker/model/micro_batch.h"

#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace sparsebalance::model {
namespace {

absl::Status CheckCount(const char* name, size_t have, size_t need, const char* per) {
  if (have == need) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("micro-batch: ", name, " has ", have,
                                                 " entries, needs ", need, ": one per ", per));
}

absl::Status CheckIds(const char* name, size_t position, int32_t id, int vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("micro-batch: ", name, "[", position, "] is ", id,
                                                 ", outside the vocabulary [0, ", vocab_size, ")"));
}

}  // namespace

absl::Status MicroBatch::Validate(const ModelConfig& config) const {
  if (tokens.empty() || cu_seqlens.size() < 2) {
    return absl::InvalidArgumentError(
        "micro-batch: no sequence; run an empty one on a single token of loss weight 0");
  }
  const size_t sequences = cu_seqlens.size() - 1;
  for (const absl::Status& status :
       {CheckCount("targets", targets.size(), tokens.size(), "token"),
        CheckCount("loss_weights", loss_weights.size(), tokens.size(), "token"),
        CheckCount("budgets", budgets.size(), sequences, "sequence"),
        CheckCount("base_budgets", base_budgets.size(), sequences, "sequence")}) {
    if (!status.ok()) return status;
  }
  if (cu_seqlens.back() != static_cast<int64_t>(tokens.size())) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch: cu_seqlens ends at ",
                                                   cu_seqlens.back(), ", but there are ",
                                                   tokens.size(), " tokens"));
  }
  for (size_t s = 0; s < sequences; ++s) {
    if (budgets[s] < 1 || base_budgets[s] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch: sequence ", s, " has budget ", budgets[s], " and base budget ",
                       base_budgets[s], "; both count the own block and must be at least 1"));
    }
  }
  if (!dropout_keys.empty()) {
    if (absl::Status s = CheckCount("dropout_keys", dropout_keys.size(), sequences, "sequence");
        !s.ok()) {
      return s;
    }
  }
  if (!layer_budgets.empty()) {
    const auto layers = static_cast<size_t>(config.num_layers);
    if (absl::Status s = CheckCount("layer_budgets", layer_budgets.size(), sequences * layers,
                                    "sequence and layer");
        !s.ok()) {
      return s;
    }
    for (size_t i = 0; i < layer_budgets.size(); ++i) {
      if (layer_budgets[i] >= 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch: sequence ", i / layers, " has budget ", layer_budgets[i],
                       " in layer ", i % layers, ", must be at least 1: the own block"));
    }
  }
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (absl::Status s = CheckIds("tokens", t, tokens[t], config.vocab_size); !s.ok()) return s;
    if (!std::isfinite(loss_weights[t]) || loss_weights[t] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("micro-batch: loss_weights[", t, "] is ",
                                                     loss_weights[t],
                                                     ", must be finite and at least 0"));
    }
    if (loss_weights[t] == 0) continue;
    if (absl::Status s = CheckIds("targets", t, targets[t], config.vocab_size); !s.ok()) return s;
  }
  return absl::OkStatus();
}

std::vector<int32_t> MicroBatch::LayerBudgets(size_t layer, size_t layers) const {
  if (layer_budgets.empty()) return budgets;
  std::vector<int32_t> out;
  out.reserve(budgets.size());
  for (size_t s = 0; s < budgets.size(); ++s) out.push_back(layer_budgets[s * layers + layer]);
  return out;
}

}  // namespace sparsebalance::model
