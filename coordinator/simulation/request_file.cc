#include "coordinator/simulation/request_file.h"

#include <cmath>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/settings_text.h"
#include "coordinator/planner/validation.h"
#include "coordinator/simulation/json_object.h"

namespace sparsebalance::simulation {
namespace {

// Beyond these a request is a mistake, and its curves would not fit into memory.
constexpr double kLargestAlpha = 16;
constexpr uint64_t kMostBlocks = 1 << 20;

// The field, where there is one, by a parser of settings_text.h.
template <class Parse>
absl::Status Text(JsonObject& job, const std::string& key, const Parse& parse) {
  std::string text;
  job.String(key, text);
  if (!job.Has(key) || !job.status().ok()) return absl::OkStatus();
  return planner::Named(job.PathOf(key), parse(text));
}

absl::Status ReadFloor(JsonObject& job, v1::CoverageFloor& floor) {
  const nlohmann::json* value = job.Value("coverage_floor");
  if (value != nullptr && value->is_number()) {
    floor.set_value(value->get<double>());
    return absl::OkStatus();
  }
  return Text(job, "coverage_floor",
              [&](const std::string& text) { return planner::ParseCoverageFloor(text, floor); });
}

// Where a message has a field, this reads it.
template <class Message>
void Uint32(JsonObject& json, const char* key, Message& m, void (Message::*set)(uint32_t)) {
  uint32_t value = 0;
  if (!json.Has(key)) return;
  json.Uint32(key, value);
  (m.*set)(value);
}

template <class Message>
void Uint64(JsonObject& json, const char* key, Message& m, void (Message::*set)(uint64_t)) {
  uint64_t value = 0;
  if (!json.Has(key)) return;
  json.Uint64(key, value);
  (m.*set)(value);
}

template <class Message>
void Double(JsonObject& json, const char* key, Message& m, void (Message::*set)(double)) {
  double value = 0;
  if (!json.Has(key)) return;
  json.Number(key, value);
  (m.*set)(value);
}

absl::Status ReadSettings(const nlohmann::json& json, v1::PlanSettings& s) {
  JsonObject job(json, "job");
  using S = v1::PlanSettings;
  if (job.Has("policy")) {
    std::string policy;
    job.String("policy", policy);
    s.set_policy(policy);
  }
  Uint32(job, "data_parallel_size", s, &S::set_data_parallel_size);
  Uint32(job, "pipeline_parallel_size", s, &S::set_pipeline_parallel_size);
  Uint32(job, "block_tokens", s, &S::set_block_tokens);
  Uint32(job, "base_budget_blocks", s, &S::set_base_budget_blocks);
  Uint32(job, "min_budget_blocks", s, &S::set_min_budget_blocks);
  Uint32(job, "max_budget_blocks", s, &S::set_max_budget_blocks);
  Uint64(job, "max_tokens_per_micro_batch", s, &S::set_max_tokens_per_micro_batch);
  Uint32(job, "padding_multiple", s, &S::set_padding_multiple);
  Uint32(job, "micro_batch_size", s, &S::set_micro_batch_size);
  Uint32(job, "micro_batches_per_rank", s, &S::set_micro_batches_per_rank);
  Uint32(job, "lookahead_steps", s, &S::set_lookahead_steps);
  Double(job, "coverage_guard", s, &S::set_coverage_guard);
  bool equal = false;
  bool layers = false;
  job.Bool("equal_micro_batch_count", equal);
  job.Bool("layer_budgets", layers);
  s.set_equal_micro_batch_count(equal);
  s.set_layer_budgets(layers);
  for (const absl::Status& status :
       {Text(job, "paper_anchor",
             [&](const std::string& text) { return planner::ParsePaperAnchor(text, s); }),
        Text(job, "search_effort",
             [&](const std::string& text) { return planner::ParseSearchEffort(text, s); }),
        ReadFloor(job, *s.mutable_coverage_floor())}) {
    if (!status.ok()) return status;
  }
  return job.Finish();
}

absl::Status ReadLatency(const nlohmann::json& json, v1::LatencyModel& m) {
  JsonObject latency(json, "latency");
  using M = v1::LatencyModel;
  Double(latency, "constant_ms", m, &M::set_constant_ms);
  Double(latency, "per_token_ms", m, &M::set_per_token_ms);
  Double(latency, "per_pair_ms", m, &M::set_per_pair_ms);
  Double(latency, "router_ms_per_token_block", m, &M::set_router_ms_per_token_block);
  Double(latency, "forward_fraction", m, &M::set_forward_fraction);
  Double(latency, "step_constant_ms", m, &M::set_step_constant_ms);
  Uint32(latency, "block_tokens", m, &M::set_block_tokens);
  Uint64(latency, "min_tokens", m, &M::set_min_tokens);
  Uint64(latency, "max_tokens", m, &M::set_max_tokens);
  Uint32(latency, "min_budget_blocks", m, &M::set_min_budget_blocks);
  Uint32(latency, "max_budget_blocks", m, &M::set_max_budget_blocks);
  return latency.Finish();
}

absl::Status ReadCoverage(const nlohmann::json& json, const std::string& path, uint64_t blocks,
                          v1::CoverageCurve& curve) {
  JsonObject coverage(json, path);
  std::string family;
  coverage.String("family", family);
  if (!family.empty()) {
    double alpha = 0;
    coverage.Number("alpha", alpha, /*required=*/true);
    if (family != "power") coverage.Fail("family", R"("power")");
    if (!(std::fabs(alpha) <= kLargestAlpha)) {
      coverage.Fail("alpha", absl::StrCat("a number within +-", kLargestAlpha));
    }
    if (coverage.status().ok()) {
      curve = planner::DensePowerCurve(static_cast<uint32_t>(blocks), alpha);
    }
    return coverage.Finish();
  }
  const nlohmann::json* budgets = coverage.Array("budget_blocks", /*required=*/true);
  const nlohmann::json* values = coverage.Array("coverage", /*required=*/true);
  if (budgets == nullptr || values == nullptr) return coverage.Finish();
  for (const nlohmann::json& b : *budgets) {
    if (!b.is_number_unsigned() || b.get<uint64_t>() > kMostBlocks) {
      coverage.Fail("budget_blocks", "an array of whole numbers");
      break;
    }
    curve.add_budget_blocks(b.get<uint32_t>());
  }
  for (const nlohmann::json& v : *values) {
    if (!v.is_number()) {
      coverage.Fail("coverage", "an array of numbers");
      break;
    }
    curve.add_coverage(v.get<double>());
  }
  return coverage.Finish();
}

absl::Status ReadSequence(const nlohmann::json& json, const std::string& path,
                          uint32_t block_tokens, v1::Sequence& q) {
  JsonObject sequence(json, path);
  uint64_t id = 0;
  uint64_t tokens = 0;
  sequence.Uint64("id", id, /*required=*/true);
  sequence.Uint64("tokens", tokens, /*required=*/true);
  q.set_id(id);
  q.set_tokens(tokens);
  Uint64(sequence, "supervised_tokens", q, &v1::Sequence::set_supervised_tokens);
  Uint32(sequence, "deferred_steps", q, &v1::Sequence::set_deferred_steps);
  const nlohmann::json* coverage = sequence.Object("coverage");
  const nlohmann::json* layers = sequence.Array("layer_coverage");
  if (absl::Status finished = sequence.Finish(); !finished.ok()) return finished;
  if ((coverage == nullptr && layers == nullptr) || tokens == 0) return absl::OkStatus();
  const uint64_t blocks = planner::BlocksOf(tokens, block_tokens);
  if (blocks > kMostBlocks) {
    sequence.Fail("tokens", absl::StrCat("at most ", kMostBlocks, " blocks"));
    return sequence.status();
  }
  if (coverage != nullptr) {
    absl::Status read =
        ReadCoverage(*coverage, sequence.PathOf("coverage"), blocks, *q.mutable_coverage());
    if (!read.ok()) return read;
  }
  if (layers == nullptr) return absl::OkStatus();
  size_t index = 0;
  for (const nlohmann::json& layer : *layers) {
    absl::Status read =
        ReadCoverage(layer, absl::StrCat(sequence.PathOf("layer_coverage"), "[", index++, "]"),
                     blocks, *q.add_layer_coverage());
    if (!read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::Status ReadSequences(const nlohmann::json& json, const std::string& path,
                           uint32_t block_tokens,
                           google::protobuf::RepeatedPtrField<v1::Sequence>& out) {
  size_t index = 0;
  for (const nlohmann::json& sequence : json) {
    absl::Status s =
        ReadSequence(sequence, absl::StrCat(path, "[", index++, "]"), block_tokens, *out.Add());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ReadUpcoming(const nlohmann::json& json, const std::string& path,
                          uint32_t block_tokens, v1::UpcomingBatch& out) {
  JsonObject batch(json, path);
  uint64_t step = 0;
  batch.Uint64("step", step, /*required=*/true);
  out.set_step(step);
  const nlohmann::json* sequences = batch.Array("sequences", /*required=*/true);
  if (absl::Status s = batch.Finish(); !s.ok()) return s;
  return ReadSequences(*sequences, batch.PathOf("sequences"), block_tokens,
                       *out.mutable_sequences());
}

absl::Status ReadFactor(const nlohmann::json& json, const std::string& path, v1::RankFactor& f) {
  JsonObject factor(json, path);
  Uint32(factor, "rank", f, &v1::RankFactor::set_rank);
  Double(factor, "time_factor", f, &v1::RankFactor::set_time_factor);
  Double(factor, "token_factor", f, &v1::RankFactor::set_token_factor);
  return factor.Finish();
}

}  // namespace

absl::StatusOr<v1::PlanRequest> ParsePlanRequest(std::string_view line) {
  nlohmann::json json;
  absl::Status parsed = ParseJson(line, json);
  if (!parsed.ok()) return parsed;
  JsonObject top(json, "");
  v1::PlanRequest request;
  const nlohmann::json* job = top.Object("job", /*required=*/true);
  const nlohmann::json* latency = top.Object("latency");
  const nlohmann::json* sequences = top.Array("sequences", /*required=*/true);
  const nlohmann::json* factors = top.Array("rank_factors");
  const nlohmann::json* upcoming = top.Array("upcoming");
  Uint64(top, "step", request, &v1::PlanRequest::set_step);
  if (absl::Status s = top.Finish(); !s.ok()) return s;
  if (absl::Status s = ReadSettings(*job, *request.mutable_settings()); !s.ok()) return s;
  if (absl::Status s = planner::ValidateSettings(request.settings()); !s.ok()) return s;
  if (latency != nullptr) {
    if (absl::Status s = ReadLatency(*latency, *request.mutable_latency()); !s.ok()) return s;
  }
  const uint32_t block_tokens = request.settings().block_tokens();
  if (absl::Status s =
          ReadSequences(*sequences, "sequences", block_tokens, *request.mutable_sequences());
      !s.ok()) {
    return s;
  }
  size_t index = 0;
  if (upcoming != nullptr) {
    for (const nlohmann::json& batch : *upcoming) {
      absl::Status s = ReadUpcoming(batch, absl::StrCat("upcoming[", index++, "]"), block_tokens,
                                    *request.add_upcoming());
      if (!s.ok()) return s;
    }
  }
  index = 0;
  if (factors != nullptr) {
    for (const nlohmann::json& factor : *factors) {
      absl::Status s = ReadFactor(factor, absl::StrCat("rank_factors[", index++, "]"),
                                  *request.add_rank_factors());
      if (!s.ok()) return s;
    }
  }
  if (absl::Status s = planner::ValidateRequest(request); !s.ok()) return s;
  return request;
}

absl::StatusOr<std::vector<v1::PlanRequest>> ReadPlanRequests(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, " cannot be opened"));
  std::vector<v1::PlanRequest> requests;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<v1::PlanRequest> request = ParsePlanRequest(line);
    if (!request.ok()) {
      absl::Status status(request.status().code(),
                          absl::StrCat(path, ":", number, ": ", request.status().message()));
      return status;
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no plan request"));
  }
  return requests;
}

}  // namespace sparsebalance::simulation
