#include "worker/model/adamw.h"

#include <fnmatch.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace sparsebalance::model {

absl::Status AdamWOptions::Validate() const {
  if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("AdamW: beta1 ", beta1, " and beta2 ", beta2, " must lie in [0, 1)"));
  }
  if (!(epsilon > 0) || !(weight_decay >= 0) || !std::isfinite(weight_decay)) {
    return absl::InvalidArgumentError(absl::StrCat("AdamW: epsilon ", epsilon,
                                                   " must be above 0 and weight_decay ",
                                                   weight_decay, " finite and at least 0"));
  }
  for (const WeightDecayGroup& group : weight_decay_groups) {
    if (group.pattern.empty() || !(group.value >= 0) || !std::isfinite(group.value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("AdamW: the weight decay of '", group.pattern, "' is ", group.value,
                       "; a group needs a pattern, and a value that is finite and at least 0"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> WeightDecays(const AdamWOptions& options,
                                                const ParameterStore& parameters) {
  std::vector<float> out;
  std::vector<bool> fits(options.weight_decay_groups.size(), false);
  for (const Parameter& p : parameters.parameters()) {
    float& decay = out.emplace_back(0.0F);
    if (!p.trainable()) continue;
    if (p.is_matrix()) decay = options.weight_decay;
    bool decided = false;
    for (size_t g = 0; g < fits.size(); ++g) {
      const WeightDecayGroup& group = options.weight_decay_groups[g];
      if (fnmatch(group.pattern.c_str(), p.name.c_str(), 0) != 0) continue;
      fits[g] = true;
      if (!decided) decay = group.value;
      decided = true;
    }
  }
  for (size_t g = 0; g < fits.size(); ++g) {
    if (fits[g]) continue;
    std::string example;
    for (const Parameter& p : parameters.parameters()) {
      if (p.trainable()) example = p.name;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("no trained parameter fits the weight decay group '",
                     options.weight_decay_groups[g].pattern, "'; names are like ", example));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(const AdamWOptions& options,
                                                     ParameterStore* parameters,
                                                     kernels::Backend* backend) {
  SB_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<AdamW> out(new AdamW(options, parameters, backend));
  SB_ASSIGN_OR_RETURN(const std::vector<float> decays, WeightDecays(options, *parameters));
  const int64_t size = parameters->grads().size();
  SB_ASSIGN_OR_RETURN(out->m_, backend->Allocate<float>(size, kernels::MemoryPurpose::kState));
  SB_ASSIGN_OR_RETURN(out->v_, backend->Allocate<float>(size, kernels::MemoryPurpose::kState));
  SB_ASSIGN_OR_RETURN(out->norm_, backend->Allocate<double>(1, kernels::MemoryPurpose::kState));
  SB_RETURN_IF_ERROR(backend->Fill(out->m_.span(), 0.0F));
  SB_RETURN_IF_ERROR(backend->Fill(out->v_.span(), 0.0F));
  for (size_t i = 0; i < decays.size(); ++i) {
    const Parameter& p = parameters->parameters()[i];
    if (!p.trainable()) continue;
    const int64_t count = p.value.size();
    const int64_t begin = p.arena_offset - parameters->trainable_begin();
    if (!out->runs_.empty() && out->runs_.back().weight_decay == decays[i] &&
        out->runs_.back().begin + out->runs_.back().count == begin) {
      out->runs_.back().count += count;
    } else {
      out->runs_.push_back({begin, count, decays[i]});
    }
  }
  return out;
}

absl::StatusOr<double> AdamW::GradNorm() {
  SB_RETURN_IF_ERROR(backend_->FillZero(norm_.span()));
  SB_RETURN_IF_ERROR(backend_->AddSquaredNorm(parameters_->grads(), norm_.span()));
  double squared = 0;
  SB_RETURN_IF_ERROR(backend_->CopyToHost(norm_.span(), &squared));
  return std::sqrt(squared);
}

absl::Status AdamW::Step(double learning_rate, double grad_scale) {
  kernels::AdamWArgs args;
  args.learning_rate = static_cast<float>(learning_rate);
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.epsilon = options_.epsilon;
  args.gradient_scale = static_cast<float>(grad_scale);
  args.step = step_ + 1;
  for (const Run& run : runs_) {
    args.weight_decay = run.weight_decay;
    const ParameterStore::Optimized views = parameters_->OptimizerViews(run.begin, run.count);
    SB_RETURN_IF_ERROR(backend_->AdamW(args, views.grad, views.value,
                                       m_.span().Slice(run.begin, run.count),
                                       v_.span().Slice(run.begin, run.count), views.copy));
  }
  ++step_;
  return absl::OkStatus();
}

absl::StatusOr<AdamWState> AdamW::ExportState() const {
  AdamWState state;
  state.step = step_;
  state.m.resize(static_cast<size_t>(m_.size()));
  state.v.resize(static_cast<size_t>(v_.size()));
  SB_RETURN_IF_ERROR(backend_->CopyToHost(m_.span(), state.m.data()));
  SB_RETURN_IF_ERROR(backend_->CopyToHost(v_.span(), state.v.data()));
  return state;
}

absl::Status AdamW::ImportState(const AdamWState& state) {
  if (state.step < 0 || static_cast<int64_t>(state.m.size()) != m_.size() ||
      static_cast<int64_t>(state.v.size()) != v_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AdamW state of step ", state.step, " with ", state.m.size(), " and ", state.v.size(),
        " moments does not fit a model of ", m_.size(), "; was it written for another model?"));
  }
  SB_RETURN_IF_ERROR(backend_->CopyToDevice(state.m, m_.span()));
  SB_RETURN_IF_ERROR(backend_->CopyToDevice(state.v, v_.span()));
  step_ = state.step;
  return absl::OkStatus();
}

double ClipScale(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace sparsebalance::model
