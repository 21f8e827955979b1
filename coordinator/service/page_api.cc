#include "coordinator/service/page_api.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/slow_rank.h"
#include "coordinator/service/job_metrics.h"
#include "coordinator/service/page_plan.h"
#include "coordinator/service/rank_names.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace sparsebalance {
namespace {

using nlohmann::json;

constexpr size_t kMaxSlowRanks = 32;
constexpr size_t kMaxFallbacks = 64;
constexpr size_t kMaxFilterBytes = 401;  // NAMESPACE/NAME
constexpr size_t kWrittenPlans = 16;

std::string Dump(const json& value) {
  // Names are UTF-8; what a caller sent back in an error may be anything.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string text;
  return google::protobuf::util::MessageToJsonString(message, &text, print).ok() ? text : "null";
}

absl::Status CheckParameters(const PageApi::Parameters& parameters,
                             std::initializer_list<const char*> known) {
  for (const auto& [name, value] : parameters) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is not known"));
    }
    if (parameters.count(name) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is given twice"));
    }
  }
  return absl::OkStatus();
}

std::string TextOf(const PageApi::Parameters& parameters, const std::string& name) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? "" : found->second;
}

absl::StatusOr<size_t> NumberOf(const PageApi::Parameters& parameters, const std::string& name,
                                size_t otherwise, size_t least, size_t most) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return otherwise;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(found->second, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat("parameter '", name, "' is '", found->second,
                                                   "'; it must be a number within [", least, ", ",
                                                   most, "]"));
  }
  return static_cast<size_t>(value);
}

// Ranks whose node is suspect and those that are slowest, at most `most`, in the order of ranks.
void KeepNotableRanks(v1::JobStatus& status, int most) {
  if (status.ranks_size() <= most) return;
  auto& ranks = *status.mutable_ranks();
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return std::pair(a.suspect(), a.time_factor()) > std::pair(b.suspect(), b.time_factor());
  });
  ranks.DeleteSubrange(most, ranks.size() - most);
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
}

json SlowRanks(const v1::JobStatus& status, size_t& total) {
  std::vector<const v1::RankStatus*> slow;
  for (const v1::RankStatus& rank : status.ranks()) {
    if (rank.time_factor() >= planner::kSlowRankTimeFactor) slow.push_back(&rank);
  }
  total = slow.size();
  std::stable_sort(slow.begin(), slow.end(), [](const auto* a, const auto* b) {
    return a->time_factor() > b->time_factor();
  });
  if (slow.size() > kMaxSlowRanks) slow.resize(kMaxSlowRanks);
  json out = json::array();
  for (const v1::RankStatus* rank : slow) {
    out.push_back({{"rank", rank->rank()},
                   {"node_id", rank->node_id()},
                   {"device_name", rank->device_name()},
                   {"time_factor", rank->time_factor()}});
  }
  return out;
}

// Why plans that are kept are not what the policy was asked for, latest first.
json PlanFallbacks(const std::vector<std::shared_ptr<const PlannedStep>>& plans) {
  json out = json::array();
  for (auto plan = plans.rbegin(); plan != plans.rend() && out.size() < kMaxFallbacks; ++plan) {
    const v1::Plan& made = (*plan)->plan;
    if (made.fallback() == v1::FALLBACK_REASON_NONE) continue;
    out.push_back({{"step", std::to_string(made.step())},
                   {"fallback", v1::FallbackReason_Name(made.fallback())},
                   {"fallback_detail", made.fallback_detail()}});
  }
  return out;
}

}  // namespace

PageAnswer PageError(const absl::Status& error) {
  int status = 500;
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      status = 400;
      break;
    case absl::StatusCode::kUnauthenticated:
      status = 401;
      break;
    case absl::StatusCode::kPermissionDenied:
      status = 403;
      break;
    case absl::StatusCode::kNotFound:
      status = 404;
      break;
    case absl::StatusCode::kUnavailable:
      status = 503;
      break;
    default:
      break;
  }
  return {status, Dump({{"error",
                         {{"code", absl::StatusCodeToString(error.code())},
                          {"message", std::string(error.message())}}}})};
}

PageAnswer PageApi::Jobs(const Parameters& parameters) const {
  if (absl::Status status = CheckParameters(parameters, {"filter", "offset", "limit"});
      !status.ok()) {
    return PageError(status);
  }
  const auto offset = NumberOf(parameters, "offset", 0, 0, SIZE_MAX);
  if (!offset.ok()) return PageError(offset.status());
  const auto limit = NumberOf(parameters, "limit", kDefaultJobs, 1, kMaxJobs);
  if (!limit.ok()) return PageError(limit.status());
  const std::string filter = TextOf(parameters, "filter");
  if (filter.size() > kMaxFilterBytes) {
    return PageError(absl::InvalidArgumentError(absl::StrCat(
        "parameter 'filter' has ", filter.size(), " bytes; at most ", kMaxFilterBytes)));
  }
  const auto listed = source_.jobs();
  if (!listed.ok()) return PageError(listed.status());

  size_t total = 0;
  std::map<std::string, size_t> by_state;
  std::string jobs = "[";
  for (const v1::JobSummary& job : listed->jobs()) {
    ++by_state[job.owner_address().empty() ? JobStateName(job.state()) : "elsewhere"];
    const std::string name = absl::StrCat(job.job().namespace_(), "/", job.job().name());
    if (name.find(filter) == std::string::npos) continue;
    const size_t position = total++;
    if (position < *offset || position - *offset >= *limit) continue;
    absl::StrAppend(&jobs, jobs.size() > 1 ? "," : "", MessageJson(job));
  }
  const json frame = {{"version", source_.version},
                      {"store", source_.store},
                      {"leader_epoch", std::to_string(listed->leader_epoch())},
                      {"problem", source_.problem ? source_.problem() : ""},
                      {"by_state", by_state},
                      {"all", listed->jobs_size()},
                      {"total", total},
                      {"offset", *offset},
                      {"limit", *limit}};
  std::string body = Dump(frame);
  body.pop_back();
  return {200, absl::StrCat(body, ",\"jobs\":", jobs, "]}")};
}

std::string PageApi::PlanText(const std::string& key, const PlannedStep& planned) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  std::string text = Dump(PagePlan(planned));
  absl::MutexLock lock(&mutex_);
  // Which one goes does not matter: a plan that is asked for again is written again.
  if (plans_.size() >= kWrittenPlans) plans_.erase(plans_.begin());
  plans_[key] = text;
  return text;
}

PageAnswer PageApi::Job(const Parameters& parameters) {
  if (absl::Status status = CheckParameters(parameters, {"namespace", "name", "known_plan"});
      !status.ok()) {
    return PageError(status);
  }
  if (!parameters.contains("name")) {
    return PageError(absl::InvalidArgumentError("parameter 'name' is missing: which job?"));
  }
  v1::JobKey key;
  key.set_namespace_(TextOf(parameters, "namespace"));
  key.set_name(TextOf(parameters, "name"));
  auto snapshot = source_.job(key);
  if (!snapshot.ok()) return PageError(snapshot.status());
  v1::JobStatus& status = snapshot->status;

  size_t slow_total = 0;
  json frame = {
      {"version", source_.version},
      {"store", source_.store},
      {"leader_epoch", std::to_string(status.leader_epoch())},
      {"problem", source_.problem ? source_.problem() : ""},
      {"slow_ranks", SlowRanks(status, slow_total)},
      {"slow_factor", planner::kSlowRankTimeFactor},
      {"slow_ranks_total", slow_total},
      {"ranks_total", RankLayout(status.spec().parallelism()).count()},
      {"ranks_present", status.ranks_size()},
      {"missing_ranks_total", status.missing_ranks_size()},
      {"missing", RankNames({status.missing_ranks().begin(), status.missing_ranks().end()})},
      {"plan_fallbacks", PlanFallbacks(snapshot->plans)}};
  KeepNotableRanks(status, kMaxRanks);
  if (status.missing_ranks_size() > kMaxMissingRanks) {
    status.mutable_missing_ranks()->Truncate(kMaxMissingRanks);
  }
  std::string plan = "null";
  if (!snapshot->plans.empty()) {
    const PlannedStep& latest = *snapshot->plans.back();
    const std::string plan_key =
        absl::StrFormat("%d-%d-%016x-%016x", latest.generation, latest.step, latest.plan_digest,
                        status.spec_fingerprint());
    frame["plan_key"] = plan_key;
    // The caller has it still: a plan is the larger part of an answer.
    if (TextOf(parameters, "known_plan") != plan_key) plan = PlanText(plan_key, latest);
  }
  std::string body = Dump(frame);
  body.pop_back();
  return {200, absl::StrCat(body, ",\"status\":", MessageJson(status), ",\"plan\":", plan, "}")};
}

}  // namespace sparsebalance
