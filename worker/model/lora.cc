#include "worker/model/lora.h"

#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sparsebalance::model {
namespace {

ProjectionSet SetOf(std::initializer_list<Projection> projections) {
  ProjectionSet out;
  for (const Projection p : projections) out.set(static_cast<size_t>(p));
  return out;
}

}  // namespace

absl::Status LoraConfig::Validate() const {
  if (rank == 0) return absl::OkStatus();
  if (rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LoRA: rank is ", rank, ", must be at least 1, or 0 for no adapters"));
  }
  if (!std::isfinite(alpha) || alpha <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LoRA: alpha is ", alpha, ", must be finite and above 0"));
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("LoRA: dropout is ", dropout, ", must lie in [0, 1)"));
  }
  if (targets.none()) {
    return absl::InvalidArgumentError("LoRA: no target projection, so nothing would be trained");
  }
  return absl::OkStatus();
}

absl::StatusOr<ProjectionSet> ParseProjections(std::string_view text) {
  using enum Projection;
  ProjectionSet out;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(part);
    const std::string_view name(stripped.data(), stripped.size());
    if (name == "all") {
      out.set();
    } else if (name == "attention") {
      out |= SetOf({kQuery, kKey, kValue, kOutput});
    } else if (name == "mlp") {
      out |= SetOf({kGate, kUp, kDown});
    } else {
      size_t p = 0;
      while (p < kProjections && kProjectionNames[p] != name) ++p;
      if (p == kProjections) {
        return absl::InvalidArgumentError(
            absl::StrCat("there is no projection '", stripped, "': take some of ",
                         ProjectionsText(ProjectionSet().set()), ", or all, attention, mlp"));
      }
      out.set(p);
    }
  }
  return out;
}

std::string ProjectionsText(const ProjectionSet& set) {
  std::string out;
  for (size_t p = 0; p < kProjections; ++p) {
    if (!set[p]) continue;
    if (!out.empty()) out += ',';
    out += kProjectionNames[p];
  }
  return out;
}

}  // namespace sparsebalance::model
