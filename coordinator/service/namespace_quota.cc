#include "coordinator/service/namespace_quota.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/config/config_values.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

struct Kind {
  const char* name;
  const char* what;    // for people
  const char* remedy;  // what frees some
  uint64_t NamespaceQuota::*limit;
  uint64_t NamespaceUsage::*amount;
};

constexpr Kind kKinds[] = {
    {"max-jobs", "unfinished jobs", "end or remove a job", &NamespaceQuota::max_jobs,
     &NamespaceUsage::jobs},
    {"max-ranks", "ranks", "end or remove a job", &NamespaceQuota::max_ranks,
     &NamespaceUsage::ranks},
    {"max-sequences", "sequences a step", "end or remove a job, or take a smaller global batch",
     &NamespaceQuota::max_sequences, &NamespaceUsage::sequences},
    {"max-bytes", "remembered bytes", "remove a job that is not needed any more",
     &NamespaceQuota::max_bytes, &NamespaceUsage::bytes},
};

absl::Status Exceeded(const std::string& ns, const Kind& kind, uint64_t limit, uint64_t used,
                      uint64_t requested) {
  v1::QuotaExceeded detail;
  detail.set_namespace_(ns);
  detail.set_quota(kind.name);
  detail.set_limit(limit);
  detail.set_used(used);
  detail.set_requested(requested);
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(
      "namespace ", ns, " may have ", limit, " ", kind.what, " and has ", used, ", so ", requested,
      " more are refused; ", kind.remedy, ", or raise its ", kind.name));
  planner::AttachDetail(status, detail);
  return status;
}

absl::Status ParseSetting(absl::string_view setting, NamespaceQuota& quota) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(setting, absl::MaxSplits('=', 1));
  for (const Kind& kind : kKinds) {
    if (parts.first != kind.name) continue;
    const std::string value(parts.second);
    if (value == "unlimited") {
      quota.*kind.limit = NamespaceQuota::kUnlimited;
      return absl::OkStatus();
    }
    const bool bytes = kind.limit == &NamespaceQuota::max_bytes;
    const auto number = bytes ? ParseBytesText(value) : ParseCountText(value);
    if (!number.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kind.name, ": ", number.status().message(), ", nor 'unlimited'"));
    }
    quota.*kind.limit = *number;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", parts.first, "' is not one of max-jobs, max-ranks, max-sequences, max-bytes"));
}

}  // namespace

absl::Status CheckQuota(const std::string& ns, const NamespaceQuota& quota,
                        const NamespaceUsage& used, const NamespaceUsage& more) {
  for (const Kind& kind : kKinds) {
    const uint64_t limit = quota.*kind.limit;
    const uint64_t has = used.*kind.amount;
    const uint64_t wants = more.*kind.amount;
    if (wants > 0 && (has > limit || wants > limit - has)) {
      return Exceeded(ns, kind, limit, has, wants);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<QuotaTable> QuotaTable::Parse(const std::vector<std::string>& entries) {
  // "*" first, so that the others start from it wherever it stands.
  NamespaceQuota others;
  std::map<std::string, NamespaceQuota, std::less<>> quotas;
  for (const bool general : {true, false}) {
    for (const std::string& entry : entries) {
      const auto wrong = [&](const std::string& problem) {
        return absl::InvalidArgumentError(absl::StrCat("quota '", entry, "': ", problem));
      };
      // A namespace may hold a colon, settings hold none.
      const size_t colon = entry.rfind(':');
      if (colon == std::string::npos || colon == 0) {
        return wrong("must be NAMESPACE:KEY=VALUE,... with * for every other namespace");
      }
      const std::string ns = entry.substr(0, colon);
      if ((ns == "*") != general) continue;
      const auto [named, added] = quotas.try_emplace(ns, others);
      if (!added) return wrong(absl::StrCat("the namespace ", ns, " has an entry before"));
      for (const absl::string_view setting : absl::StrSplit(entry.substr(colon + 1), ',')) {
        if (absl::Status status = ParseSetting(setting, named->second); !status.ok()) {
          return wrong(std::string(status.message()));
        }
      }
      if (general) others = named->second;
    }
  }
  QuotaTable table;
  {
    absl::MutexLock lock(&table.mutex_);
    table.others_ = others;
    table.named_ = std::move(quotas);
  }
  return table;
}

QuotaTable::QuotaTable(const QuotaTable& other) { *this = other; }

QuotaTable& QuotaTable::operator=(const QuotaTable& other) {
  if (this == &other) return *this;
  NamespaceQuota others;
  std::map<std::string, NamespaceQuota, std::less<>> named;
  {
    absl::MutexLock lock(&other.mutex_);
    others = other.others_;
    named = other.named_;
  }
  absl::MutexLock lock(&mutex_);
  others_ = others;
  named_ = std::move(named);
  return *this;
}

NamespaceQuota QuotaTable::For(std::string_view ns) const {
  absl::MutexLock lock(&mutex_);
  const auto named = named_.find(ns);
  return named == named_.end() ? others_ : named->second;
}

}  // namespace sparsebalance
