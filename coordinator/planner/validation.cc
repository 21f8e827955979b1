#include "coordinator/planner/validation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

// Bounds that keep every product of the planner inside its integers.
constexpr uint64_t kMaxTokens = uint64_t{1} << 36;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 24;
constexpr uint64_t kMaxRanks = uint64_t{1} << 20;
constexpr uint64_t kMaxStages = uint64_t{1} << 12;
constexpr uint64_t kMaxLookahead = 64;
constexpr uint64_t kMaxLayeredBlocks = uint64_t{1} << 16;  // curves by layer are kept dense
constexpr uint64_t kMaxMicroBatches = uint64_t{1} << 22;   // of a step
constexpr double kMaxBatchMs = 1e9;
constexpr double kMaxCoefficientMs = 1e6;  // keeps a fixed point nanosecond below 2^61

absl::Status RangeError(const std::string& field, double value, const std::string& problem) {
  return FieldError(field, absl::StrCat(value), problem);
}

absl::Status CheckInteger(const std::string& field, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FieldError(field, absl::StrCat(value),
                    absl::StrCat("must be between ", least, " and ", most));
}

absl::Status CheckTerm(const std::string& field, double value) {
  if (value >= 0.0 && value <= kMaxCoefficientMs) return absl::OkStatus();
  return RangeError(
      field, value,
      absl::StrCat("must be a finite number of milliseconds in [0, ", kMaxCoefficientMs, "]"));
}

absl::Status ValidateLatency(const v1::LatencyModel& model, uint32_t block_tokens) {
  for (const auto& [name, value] :
       {std::pair<const char*, double>{"constant_ms", model.constant_ms()},
        {"per_token_ms", model.per_token_ms()},
        {"per_pair_ms", model.per_pair_ms()},
        {"router_ms_per_token_block", model.router_ms_per_token_block()},
        {"step_constant_ms", model.step_constant_ms()}}) {
    if (absl::Status s = CheckTerm(absl::StrCat("latency.", name), value); !s.ok()) return s;
  }
  const double pair = model.per_pair_ms() * block_tokens * block_tokens;
  if (absl::Status s = CheckTerm("latency.per_pair_ms * block_tokens^2", pair); !s.ok()) return s;
  if (!(model.forward_fraction() > 0.0 && model.forward_fraction() < 1.0)) {
    return RangeError("latency.forward_fraction", model.forward_fraction(),
                      "must be inside (0, 1); a third is usual without recomputation");
  }
  return absl::OkStatus();
}

absl::Status ValidateRankFactors(const v1::PlanRequest& request, double* largest) {
  std::vector<uint32_t> seen;
  for (int i = 0; i < request.rank_factors_size(); ++i) {
    const v1::RankFactor& f = request.rank_factors(i);
    const std::string path = absl::StrCat("rank_factors[", i, "]");
    if (f.rank() >= request.settings().data_parallel_size()) {
      return FieldError(path + ".rank", absl::StrCat(f.rank()),
                        absl::StrCat("must be below data_parallel_size (",
                                     request.settings().data_parallel_size(), ")"));
    }
    if (!(f.time_factor() >= 1e-3 && f.time_factor() <= 1e3)) {
      return RangeError(path + ".time_factor", f.time_factor(), "must be in [0.001, 1000]");
    }
    if (f.token_factor() != 0 && !(f.token_factor() >= 1e-3 && f.token_factor() <= 1e3)) {
      return RangeError(path + ".token_factor", f.token_factor(),
                        "must be in [0.001, 1000], or 0 for 1");
    }
    *largest = std::max(*largest, f.time_factor());
    seen.push_back(f.rank());
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) {
    return FieldError("rank_factors", absl::StrCat("rank ", *twice), "lists a rank twice");
  }
  return absl::OkStatus();
}

absl::Status ValidateLayers(const v1::Sequence& s, const std::string& path, uint64_t blocks,
                            uint32_t stages, int* layers) {
  const int count = s.layer_coverage_size();
  const std::string field = path + ".layer_coverage";
  const std::string value = absl::StrCat(count, " curves");
  if (static_cast<uint32_t>(count) < stages) {
    return FieldError(field, value, absl::StrCat("must have at least one a stage (", stages, ")"));
  }
  if (*layers != 0 && count != *layers) {
    return FieldError(field, value,
                      absl::StrCat("must have as many as the sequences before it (", *layers, ")"));
  }
  *layers = count;
  if (blocks > kMaxLayeredBlocks) {
    return FieldError(path + ".tokens", absl::StrCat(s.tokens()),
                      absl::StrCat("is ", blocks, " blocks; budgets by layer are for at most ",
                                   kMaxLayeredBlocks, ", use larger blocks"));
  }
  for (int l = 0; l < count; ++l) {
    const v1::CoverageCurve& curve = s.layer_coverage(l);
    absl::Status status = CheckCurve(curve, static_cast<uint32_t>(blocks));
    if (status.ok() && curve.budget_blocks().empty()) {
      status = absl::InvalidArgumentError("it is empty");
    }
    if (!status.ok()) {
      return FieldError(absl::StrCat(field, "[", l, "]"),
                        absl::StrCat("a curve of sequence ", s.id()),
                        std::string(status.message()));
    }
  }
  return absl::OkStatus();
}

// `layers`: of the sequences before it, 0 where none has any. The path is made for errors alone.
absl::Status ValidateSequence(const v1::Sequence& s, absl::FunctionRef<std::string()> path,
                              const v1::PlanSettings& settings, int* layers) {
  if (s.tokens() < 1 || s.tokens() > kMaxTokens) {
    return CheckInteger(path() + ".tokens", s.tokens(), 1, kMaxTokens);
  }
  if (s.supervised_tokens() > s.tokens()) {
    return FieldError(path() + ".supervised_tokens", absl::StrCat(s.supervised_tokens()),
                      absl::StrCat("must not exceed the sequence's ", s.tokens(), " tokens"));
  }
  const uint64_t blocks = BlocksOf(s.tokens(), settings.block_tokens());
  if (blocks > kMaxBlocks) {
    return FieldError(
        path() + ".tokens", absl::StrCat(s.tokens()),
        absl::StrCat("is ", blocks, " blocks, more than ", kMaxBlocks, "; use larger blocks"));
  }
  const absl::Status curve = CheckCurve(s.coverage(), static_cast<uint32_t>(blocks));
  if (!curve.ok()) {
    return FieldError(path() + ".coverage", absl::StrCat("the curve of sequence ", s.id()),
                      std::string(curve.message()));
  }
  if (s.layer_coverage().empty()) return absl::OkStatus();
  return ValidateLayers(s, path(), blocks, std::max<uint32_t>(1, settings.pipeline_parallel_size()),
                        layers);
}

absl::Status ValidateUpcoming(const v1::PlanRequest& request) {
  const int most = static_cast<int>(request.settings().lookahead_steps()) - 1;
  if (request.upcoming_size() > std::max(0, most)) {
    return FieldError(
        "upcoming", absl::StrCat(request.upcoming_size(), " batches"),
        absl::StrCat("must have at most lookahead_steps - 1 (", std::max(0, most), ")"));
  }
  for (int b = 0; b < request.upcoming_size(); ++b) {
    const uint64_t wanted = request.step() + static_cast<uint64_t>(b) + 1;
    if (request.upcoming(b).step() != wanted) {
      return FieldError(absl::StrCat("upcoming[", b, "].step"),
                        absl::StrCat(request.upcoming(b).step()),
                        absl::StrCat("must be ", wanted, ": batches follow step by step"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FieldError(const std::string& field, const std::string& value,
                        const std::string& problem) {
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ": ", problem));
  v1::FieldViolation detail;
  detail.set_field(field);
  detail.set_value(value);
  detail.set_problem(problem);
  AttachDetail(status, detail);
  return status;
}

absl::Status ValidateSettings(const v1::PlanSettings& s) {
  const std::vector<std::string> names = PolicyNames();
  if (!s.policy().empty() && std::find(names.begin(), names.end(), s.policy()) == names.end()) {
    return FieldError("settings.policy", absl::StrCat("\"", s.policy(), "\""),
                      absl::StrCat("must be one of ", absl::StrJoin(names, ", ")));
  }
  struct Range {
    const char* field;
    uint64_t value, least, most;
  };
  const uint64_t min_budget = std::max<uint32_t>(1, s.min_budget_blocks());
  const uint64_t max_budget = s.max_budget_blocks() == 0 ? kMaxBlocks : s.max_budget_blocks();
  for (const Range& r : {
           Range{"data_parallel_size", s.data_parallel_size(), 1, kMaxRanks},
           Range{"pipeline_parallel_size", s.pipeline_parallel_size(), 0, kMaxStages},
           Range{"block_tokens", s.block_tokens(), 1, kMaxBlocks},
           Range{"min_budget_blocks", s.min_budget_blocks(), 0, kMaxBlocks},
           Range{"max_budget_blocks", max_budget, min_budget, kMaxBlocks},
           Range{"base_budget_blocks", s.base_budget_blocks(), min_budget, max_budget},
           Range{"max_tokens_per_micro_batch", s.max_tokens_per_micro_batch(), 1, kMaxTokens},
           Range{"padding_multiple", s.padding_multiple(), 0, kMaxBlocks},
           Range{"micro_batch_size", s.micro_batch_size(), 0, kMaxMicroBatches},
           Range{"micro_batches_per_rank", s.micro_batches_per_rank(), 0, kMaxMicroBatches},
           Range{"lookahead_steps", s.lookahead_steps(), 0, kMaxLookahead},
       }) {
    absl::Status status =
        CheckInteger(absl::StrCat("settings.", r.field), r.value, r.least, r.most);
    if (!status.ok()) return status;
  }
  if (uint64_t{s.micro_batches_per_rank()} * s.data_parallel_size() > kMaxMicroBatches) {
    return FieldError(
        "settings.micro_batches_per_rank", absl::StrCat(s.micro_batches_per_rank()),
        absl::StrCat("makes more than ", kMaxMicroBatches, " micro-batches over all ranks"));
  }
  if (!(s.coverage_guard() >= 0.0 && s.coverage_guard() <= 1.0)) {
    return RangeError("settings.coverage_guard", s.coverage_guard(), "must be in [0, 1]");
  }
  const v1::CoverageFloor& floor = s.coverage_floor();
  if (floor.kind_case() == v1::CoverageFloor::kValue &&
      !(floor.value() >= 0.0 && floor.value() <= 1.0)) {
    return RangeError("settings.coverage_floor.value", floor.value(), "must be in [0, 1]");
  }
  if (floor.kind_case() == v1::CoverageFloor::kMode &&
      !v1::CoverageFloorMode_IsValid(floor.mode())) {
    return FieldError("settings.coverage_floor.mode", absl::StrCat(floor.mode()),
                      "is not a mode that this version knows");
  }
  if (!v1::PaperAnchor_IsValid(s.paper_anchor())) {
    return FieldError("settings.paper_anchor", absl::StrCat(s.paper_anchor()),
                      "is not an anchor that this version knows");
  }
  if (!v1::SearchEffort_IsValid(s.search_effort())) {
    return FieldError("settings.search_effort", absl::StrCat(s.search_effort()),
                      "is not an effort that this version knows");
  }
  return absl::OkStatus();
}

absl::Status ValidateRequest(const v1::PlanRequest& request) {
  const v1::PlanSettings& settings = request.settings();
  if (absl::Status s = ValidateSettings(settings); !s.ok()) return s;
  const uint32_t block = settings.block_tokens();
  const v1::LatencyModel model = request.has_latency() ? request.latency() : DefaultLatencyModel();
  if (absl::Status s = ValidateLatency(model, block); !s.ok()) return s;
  double factor = 1.0;
  if (absl::Status s = ValidateRankFactors(request, &factor); !s.ok()) return s;

  if (absl::Status s = ValidateUpcoming(request); !s.ok()) return s;

  std::vector<uint64_t> ids;
  ids.reserve(request.sequences_size());
  double total_ms = model.constant_ms() * (request.sequences_size() +
                                           static_cast<double>(settings.micro_batches_per_rank()) *
                                               settings.data_parallel_size());
  int layers = 0;
  const auto add = [&](const google::protobuf::RepeatedPtrField<v1::Sequence>& sequences,
                       const std::string& prefix) -> absl::Status {
    for (int i = 0; i < sequences.size(); ++i) {
      const v1::Sequence& s = sequences[i];
      const auto path = [&] { return absl::StrCat(prefix, "sequences[", i, "]"); };
      if (absl::Status st = ValidateSequence(s, path, settings, &layers); !st.ok()) return st;
      ids.push_back(s.id());
      const auto n = static_cast<double>(s.tokens());
      const double blocks = static_cast<double>(BlocksOf(s.tokens(), block));
      total_ms += model.per_token_ms() * n + model.router_ms_per_token_block() * n * blocks +
                  model.per_pair_ms() * block * block * blocks * (blocks + 1) / 2;
    }
    return absl::OkStatus();
  };
  if (absl::Status s = add(request.sequences(), ""); !s.ok()) return s;
  for (int b = 0; b < request.upcoming_size(); ++b) {
    absl::Status s = add(request.upcoming(b).sequences(), absl::StrCat("upcoming[", b, "]."));
    if (!s.ok()) return s;
  }
  if (!std::is_sorted(ids.begin(), ids.end())) std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) {
    return FieldError("sequences", absl::StrCat("id ", *twice),
                      "occurs more than once in the global batches; ids must be unique");
  }
  total_ms *= factor * std::max<uint32_t>(1, settings.pipeline_parallel_size());
  if (!(total_ms <= kMaxBatchMs)) {
    return RangeError("latency", total_ms,
                      "predicts so many milliseconds for the whole batch that something must be "
                      "wrong with its units; coefficients are milliseconds");
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::planner
