#include "coordinator/store/etcd/etcd_keys.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sparsebalance {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

bool IsPlain(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
}

std::string JobPart(const JobId& id) {
  return absl::StrCat(EscapePathPart(id.ns), "/", EscapePathPart(id.name));
}

std::string NumberPart(uint64_t number) {
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

}  // namespace

std::string EscapePathPart(std::string_view name) {
  std::string part;
  part.reserve(name.size());
  for (const char c : name) {
    if (IsPlain(c)) {
      part.push_back(c);
    } else {
      absl::StrAppend(&part, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return part;
}

std::optional<std::string> UnescapePathPart(std::string_view part) {
  std::string name;
  for (size_t i = 0; i < part.size(); ++i) {
    if (IsPlain(part[i])) {
      name.push_back(part[i]);
      continue;
    }
    uint32_t byte = 0;
    if (part[i] != '%' || part.size() - i < 3 ||
        !absl::SimpleHexAtoi(Absl(part.substr(i + 1, 2)), &byte)) {
      return std::nullopt;
    }
    name.push_back(static_cast<char>(byte));
    i += 2;
  }
  // One name has one key: what is escaped in another way is not ours.
  if (EscapePathPart(name) != part) return std::nullopt;
  return name;
}

namespace record_path {

std::string Job(const JobId& id) { return AllJobs() + JobPart(id); }
std::string Coverage(const JobId& id, uint64_t chunk) {
  return AllCoverage(id) + NumberPart(chunk);
}
std::string Latency(const JobId& id) { return "latency/" + JobPart(id); }
std::string Consumed(const JobId& id, uint64_t step) { return AllConsumed(id) + NumberPart(step); }
std::string Profile(const v1::ProfileKey& key) {
  return absl::StrCat(AllProfiles(), EscapePathPart(key.namespace_()), "/",
                      EscapePathPart(key.device_class()), "/", EscapePathPart(key.model_class()));
}

std::string AllJobs() { return "jobs/"; }
std::string AllCoverage(const JobId& id) { return absl::StrCat("coverage/", JobPart(id), "/"); }
std::string AllConsumed(const JobId& id) { return absl::StrCat("consumed/", JobPart(id), "/"); }
std::string AllProfiles() { return "profiles/"; }

std::optional<uint64_t> Number(std::string_view path) {
  constexpr size_t kDigits = 16;
  uint64_t number = 0;
  if (path.size() < kDigits ||
      !absl::SimpleHexAtoi(Absl(path.substr(path.size() - kDigits)), &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace record_path

std::string EndOf(std::string directory) { return EtcdRange::Prefix(std::move(directory)).end; }

EtcdKeys::EtcdKeys(std::string prefix) : prefix_(std::move(prefix)) {
  if (prefix_.empty() || prefix_.back() != '/') prefix_.push_back('/');
}

std::string EtcdKeys::Record(std::string_view path) const {
  return absl::StrCat(prefix_, Absl(path));
}

std::string EtcdKeys::Parts(std::string_view path) const {
  return absl::StrCat(prefix_, "parts/", Absl(path), "/");
}

std::string EtcdKeys::Parts(std::string_view path, std::string_view generation) const {
  return absl::StrCat(Parts(path), Absl(generation), "/");
}

EtcdRange EtcdKeys::Records(std::string_view begin, std::string_view end) const {
  return {Record(begin), Record(end)};
}

EtcdRange EtcdKeys::PartsOfRecords(std::string_view begin, std::string_view end) const {
  return {absl::StrCat(prefix_, "parts/", Absl(begin)), absl::StrCat(prefix_, "parts/", Absl(end))};
}

EtcdRange EtcdKeys::Claims() const { return EtcdRange::Prefix(prefix_ + "claims/"); }

std::string EtcdKeys::Claim(const JobId& id) const {
  return absl::StrCat(prefix_, "claims/", JobPart(id));
}

std::string EtcdKeys::Mark(const JobId& id) const {
  return absl::StrCat(prefix_, "marks/", JobPart(id));
}

std::string EtcdKeys::EpochBase() const { return prefix_ + "epoch_base"; }

std::string EtcdKeys::PathOf(std::string_view key) const {
  return std::string(key.substr(prefix_.size()));
}

std::optional<JobId> EtcdKeys::JobOf(std::string_view key) const {
  const std::string path = PathOf(key);
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  if (parts.size() != 3) return std::nullopt;
  std::optional<std::string> ns = UnescapePathPart(parts[1]);
  std::optional<std::string> name = UnescapePathPart(parts[2]);
  if (!ns || !name) return std::nullopt;
  return JobId{*std::move(ns), *std::move(name)};
}

}  // namespace sparsebalance
