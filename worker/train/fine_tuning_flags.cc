#include "worker/train/fine_tuning_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/settings_text.h"
#include "kernels/status_macros.h"
#include "worker/model_io/peft_adapter.h"

namespace sparsebalance {

void FineTuningFlags::Add(CLI::App& group, TrainOptions& train) {
  model::LoraConfig& lora = train.model.lora;
  lora_shape_ = {
      group
          .add_option("--lora-rank", lora.rank,
                      "rank of low-rank adapters, which alone are trained; 0: none. Needs "
                      "--init-from")
          ->capture_default_str(),
      group.add_option("--lora-alpha", lora.alpha, "adapters count alpha / rank")
          ->capture_default_str(),
      group
          .add_option("--lora-targets", lora_targets_,
                      "projections that get one: q_proj, k_proj, v_proj, o_proj, gate_proj, "
                      "up_proj, down_proj, or attention, mlp, all")
          ->capture_default_str()};
  group.add_option("--lora-dropout", lora_dropout_, "rate on what adapters read")
      ->capture_default_str();
  group.add_option("--lora-init-from", train.lora_init_from,
                   "folder of a PEFT adapter to start from; rank, alpha and targets are its own");
  group
      .add_option("--dropout", train.model.dropout,
                  "rate on the embedding and on what attention and MLP add; the same masks "
                  "whatever the plan")
      ->capture_default_str();
  group.add_option("--weight-decay-group", weight_decay_groups_,
                   "PATTERN=VALUE, may be repeated: decay of parameters whose name fits, for "
                   "example '*.embed_tokens.*=0'; the first that fits counts");
}

absl::Status FineTuningFlags::Finish(TrainOptions& train) const {
  model::LoraConfig& lora = train.model.lora;
  if (train.lora_init_from.empty()) {
    const auto targets = model::ParseProjections(lora_targets_);
    if (!targets.ok()) return planner::Named("--lora-targets", targets.status());
    lora.targets = *targets;
  } else {
    for (const CLI::Option* option : lora_shape_) {
      if (option->count() == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(option->get_name(), " and --lora-init-from are both given: the adapter in ",
                       train.lora_init_from, " has its own"));
    }
    SB_ASSIGN_OR_RETURN(const model_io::AdapterConfig adapter,
                        model_io::ReadAdapterConfig(train.lora_init_from));
    lora = adapter.lora;
  }
  lora.dropout = lora_dropout_;
  for (const std::string& text : weight_decay_groups_) {
    const size_t equals = text.rfind('=');
    model::WeightDecayGroup group;
    if (equals == std::string::npos || equals == 0 ||
        !absl::SimpleAtof(text.substr(equals + 1), &group.value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--weight-decay-group '", text, "' is not PATTERN=VALUE, for example '*.mlp.*=0.05'"));
    }
    group.pattern = text.substr(0, equals);
    train.optimizer.weight_decay_groups.push_back(std::move(group));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
