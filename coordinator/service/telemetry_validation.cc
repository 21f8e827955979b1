#include <cmath>
#include <string>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/planner/validation.h"
#include "coordinator/service/request_validation.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using planner::FieldError;

constexpr uint32_t kMaxBudgetBlocks = 1u << 24;
// Nats summed over every token of a rank; beyond it the figure is no loss.
constexpr double kMaxLossSum = 1e15;

absl::Status CheckMs(double value, const std::string& field, const ServiceOptions& options) {
  if (std::isfinite(value) && value >= 0 && value <= options.max_telemetry_ms) {
    return absl::OkStatus();
  }
  return FieldError(field, absl::StrCat(value),
                    absl::StrCat("must be a finite number of milliseconds in [0, ",
                                 options.max_telemetry_ms, "]"));
}

absl::Status CheckTokens(uint64_t value, const std::string& field, const ServiceOptions& options) {
  if (value >= 1 && value <= options.max_sequence_tokens) return absl::OkStatus();
  return FieldError(field, absl::StrCat(value),
                    absl::StrCat("must be within [1, ", options.max_sequence_tokens, "]"));
}

absl::Status CheckBudget(uint32_t value, const std::string& field) {
  if (value >= 1 && value <= kMaxBudgetBlocks) return absl::OkStatus();
  return FieldError(field, absl::StrCat(value),
                    absl::StrCat("must be within [1, ", kMaxBudgetBlocks, "]"));
}

// Shape only: whether the curve fits the sequence's blocks is checked where the block is known.
absl::Status CheckCurveShape(const v1::CoverageCurve& curve, const std::string& field) {
  if (curve.budget_blocks_size() != curve.coverage_size()) {
    return FieldError(field,
                      absl::StrCat(curve.budget_blocks_size(), " budgets and ",
                                   curve.coverage_size(), " coverages"),
                      "must have as many of one as of the other");
  }
  for (int i = 0; i < curve.coverage_size(); ++i) {
    const double coverage = curve.coverage(i);
    if (!(coverage >= 0 && coverage <= 1)) {
      return FieldError(absl::StrCat(field, ".coverage[", i, "]"), absl::StrCat(coverage),
                        "must be within [0, 1]");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const v1::SequenceTelemetry& sequence, const std::string& field,
                           const ServiceOptions& options) {
  if (absl::Status s = CheckTokens(sequence.tokens(), field + ".tokens", options); !s.ok()) {
    return s;
  }
  if (absl::Status s =
          CheckBudget(sequence.planned_budget_blocks(), field + ".planned_budget_blocks");
      !s.ok()) {
    return s;
  }
  if (sequence.realized_budget_blocks_size() > kMaxLayers) {
    return FieldError(field + ".realized_budget_blocks",
                      absl::StrCat(sequence.realized_budget_blocks_size(), " entries"),
                      absl::StrCat("must have at most ", kMaxLayers));
  }
  for (int i = 0; i < sequence.realized_budget_blocks_size(); ++i) {
    if (absl::Status s = CheckBudget(sequence.realized_budget_blocks(i),
                                     absl::StrCat(field, ".realized_budget_blocks[", i, "]"));
        !s.ok()) {
      return s;
    }
  }
  if (sequence.layer_coverage_size() > kMaxLayers) {
    return FieldError(field + ".layer_coverage",
                      absl::StrCat(sequence.layer_coverage_size(), " entries"),
                      absl::StrCat("must have at most ", kMaxLayers));
  }
  for (int i = 0; i < sequence.layer_coverage_size(); ++i) {
    if (absl::Status s = CheckCurveShape(sequence.layer_coverage(i),
                                         absl::StrCat(field, ".layer_coverage[", i, "]"));
        !s.ok()) {
      return s;
    }
  }
  for (const auto& [present, value, name] :
       {std::tuple<bool, double, const char*>{sequence.has_attention_mass(),
                                              sequence.attention_mass(), ".attention_mass"},
        {sequence.has_realized_coverage(), sequence.realized_coverage(), ".realized_coverage"}}) {
    if (present && !(value >= 0 && value <= 1)) {
      return FieldError(field + name, absl::StrCat(value), "must be within [0, 1]");
    }
  }
  return CheckCurveShape(sequence.coverage(), field + ".coverage");
}

absl::Status CheckRank(const v1::RankTelemetry& rank, const std::string& field,
                       const std::set<uint32_t>& owned, const ServiceOptions& options) {
  if (!owned.contains(rank.rank())) {
    return FieldError(field + ".rank", absl::StrCat(rank.rank()),
                      "is not a rank of the calling node");
  }
  if (rank.step() >= kMaxCounter) {
    return FieldError(field + ".step", absl::StrCat(rank.step()), "must be below 2^62");
  }
  for (const auto& [value, name] : {std::pair<double, const char*>{rank.step_ms(), ".step_ms"},
                                    {rank.compute_ms(), ".compute_ms"},
                                    {rank.idle_ms(), ".idle_ms"},
                                    {rank.plan_wait_ms(), ".plan_wait_ms"},
                                    {rank.agreement_ms(), ".agreement_ms"}}) {
    if (absl::Status s = CheckMs(value, field + name, options); !s.ok()) return s;
  }
  // A loss may be negative (a difference of log-likelihoods), but a number it must be.
  if (!(std::abs(rank.loss_sum()) <= kMaxLossSum)) {
    return FieldError(field + ".loss_sum", absl::StrCat(rank.loss_sum()),
                      absl::StrCat("must be finite and within ", kMaxLossSum,
                                   "; report a skipped batch with 0 supervised tokens"));
  }
  for (const auto& [value, name] :
       {std::pair<uint64_t, const char*>{rank.supervised_tokens(), ".supervised_tokens"},
        {rank.tokens(), ".tokens"}}) {
    if (value >= kMaxCounter) {
      return FieldError(field + name, absl::StrCat(value), "must be below 2^62");
    }
  }
  for (int m = 0; m < rank.micro_batches_size(); ++m) {
    const v1::MicroBatchTelemetry& micro = rank.micro_batches(m);
    const std::string path = absl::StrCat(field, ".micro_batches[", m, "]");
    for (const auto& [value, name] :
         {std::pair<double, const char*>{micro.forward_ms(), ".forward_ms"},
          {micro.backward_ms(), ".backward_ms"},
          {micro.forward_cpu_ms(), ".forward_cpu_ms"},
          {micro.backward_cpu_ms(), ".backward_cpu_ms"}}) {
      if (absl::Status s = CheckMs(value, path + name, options); !s.ok()) return s;
    }
    for (int q = 0; q < micro.sequences_size(); ++q) {
      if (absl::Status s =
              CheckSequence(micro.sequences(q), absl::StrCat(path, ".sequences[", q, "]"), options);
          !s.ok()) {
        return s;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateTelemetry(
    const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
    const std::set<uint32_t>& owned, const ServiceOptions& options) {
  for (int i = 0; i < telemetry.size(); ++i) {
    if (absl::Status s =
            CheckRank(telemetry[i], absl::StrCat("telemetry[", i, "]"), owned, options);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateCoverage(
    const google::protobuf::RepeatedPtrField<v1::SequenceCoverage>& entries, uint32_t block_tokens,
    const ServiceOptions& options) {
  if (static_cast<size_t>(entries.size()) > options.max_coverage_entries_per_call) {
    return FieldError("entries", absl::StrCat(entries.size(), " entries"),
                      absl::StrCat("must have at most ", options.max_coverage_entries_per_call,
                                   "; send the rest in another call"));
  }
  for (int i = 0; i < entries.size(); ++i) {
    const std::string field = absl::StrCat("entries[", i, "]");
    if (absl::Status s = CheckTokens(entries[i].tokens(), field + ".tokens", options); !s.ok()) {
      return s;
    }
    if (entries[i].coverage().budget_blocks().empty()) {
      return FieldError(field + ".coverage", "empty", "must hold a measured curve");
    }
    const uint64_t blocks = planner::BlocksOf(entries[i].tokens(), block_tokens);
    if (absl::Status s = planner::CheckCurve(entries[i].coverage(), static_cast<uint32_t>(blocks));
        !s.ok()) {
      return FieldError(field + ".coverage", absl::StrCat("of sequence ", entries[i].sequence_id()),
                        std::string(s.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateProfile(const v1::LatencyProfile& profile) {
  for (const auto& [name, field] :
       {std::pair{&profile.key().namespace_(), "profile.key.namespace"},
        std::pair{&profile.key().device_class(), "profile.key.device_class"},
        std::pair{&profile.key().model_class(), "profile.key.model_class"}}) {
    if (absl::Status s = ValidateName(*name, field); !s.ok()) return s;
  }
  if (profile.model().block_tokens() == 0) {
    return FieldError("profile.model.block_tokens", "0",
                      "a profile says which block size it was measured with");
  }
  // The planner's own bounds, tried on the smallest request there is.
  v1::PlanRequest request;
  request.mutable_settings()->set_policy("length");
  request.mutable_settings()->set_data_parallel_size(1);
  request.mutable_settings()->set_block_tokens(profile.model().block_tokens());
  request.mutable_settings()->set_base_budget_blocks(1);
  request.mutable_settings()->set_max_tokens_per_micro_batch(1);
  *request.mutable_latency() = profile.model();
  v1::Sequence* sequence = request.add_sequences();
  sequence->set_id(1);
  sequence->set_tokens(1);
  if (absl::Status s = planner::ValidateRequest(request); !s.ok()) {
    const auto violation = planner::GetDetail<v1::FieldViolation>(s);
    if (!violation) return s;
    std::string field = violation->field();
    if (field.rfind("latency", 0) == 0) field = "profile.model" + field.substr(7);
    return FieldError(field, violation->value(), violation->problem());
  }
  for (int i = 0; i < profile.points_size(); ++i) {
    const v1::ProfilePoint& point = profile.points(i);
    const std::string field = absl::StrCat("profile.points[", i, "]");
    if (point.tokens() == 0) return FieldError(field + ".tokens", "0", "must be at least 1");
    if (absl::Status s = CheckBudget(point.budget_blocks(), field + ".budget_blocks"); !s.ok()) {
      return s;
    }
    for (const auto& [value, name] :
         {std::pair<double, const char*>{point.forward_ms(), ".forward_ms"},
          {point.backward_ms(), ".backward_ms"}}) {
      if (!(value >= 0 && std::isfinite(value))) {
        return FieldError(field + name, absl::StrCat(value), "must be finite and not negative");
      }
    }
  }
  if (!(profile.mean_relative_error() >= 0 && std::isfinite(profile.mean_relative_error()))) {
    return FieldError("profile.mean_relative_error", absl::StrCat(profile.mean_relative_error()),
                      "must be finite and not negative");
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
