#include "worker/train/plan_record.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

namespace sparsebalance {
namespace {

std::string SystemReason() { return std::error_code(errno, std::generic_category()).message(); }

// Adds the ranks of `from` that `to` does not have, keeping the order of ranks.
void MergeRanks(const v1::Plan& from, v1::Plan& to) {
  for (const v1::RankPlan& rank : from.ranks()) {
    const bool known = std::any_of(to.ranks().begin(), to.ranks().end(),
                                   [&](const auto& r) { return r.rank() == rank.rank(); });
    if (!known) *to.add_ranks() = rank;
  }
  std::sort(to.mutable_ranks()->begin(), to.mutable_ranks()->end(),
            [](const v1::RankPlan& a, const v1::RankPlan& b) { return a.rank() < b.rank(); });
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path().string());
    }
    if (error || files.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("no plan records (*.jsonl) in the folder ", path));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanRecorder>> PlanRecorder::Open(const std::string& path,
                                                                 bool append) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  std::FILE* file = std::fopen(path.c_str(), append ? "ae" : "we");
  if (file == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the record of plans ", path, ": ", SystemReason()));
  }
  return std::unique_ptr<PlanRecorder>(new PlanRecorder(file, path));
}

PlanRecorder::~PlanRecorder() { std::fclose(file_); }

absl::Status PlanRecorder::Add(const v1::PlanRecord& record, size_t local_ranks) {
  absl::MutexLock lock(&mutex_);
  const auto [entry, fresh] = open_.try_emplace(record.step(), record);
  if (!fresh) MergeRanks(record.plan(), *entry->second.mutable_plan());
  if (static_cast<size_t>(entry->second.plan().ranks_size()) < local_ranks) return absl::OkStatus();

  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  if (const auto status =
          google::protobuf::util::MessageToJsonString(entry->second, &line, options);
      !status.ok()) {
    return absl::InternalError(absl::StrCat("cannot print the plan of step ", record.step()));
  }
  open_.erase(entry);
  line.push_back('\n');
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the record of plans ", path_, ": ", SystemReason()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PlanReplay>> PlanReplay::Load(
    const std::vector<std::string>& paths) {
  absl::StatusOr<std::vector<std::string>> files = FilesOf(paths);
  if (!files.ok()) return files.status();
  std::map<uint64_t, v1::PlanRecord> merged;
  for (const std::string& path : *files) {
    std::ifstream in(path);
    if (!in) {
      return absl::NotFoundError(
          absl::StrCat("cannot read the plan record ", path, ": ", SystemReason()));
    }
    std::map<uint64_t, v1::PlanRecord> of_file;
    std::string line;
    for (size_t number = 1; std::getline(in, line); ++number) {
      if (line.empty()) continue;
      v1::PlanRecord record;
      const auto status = google::protobuf::util::JsonStringToMessage(line, &record);
      if (!status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ":", number, ": not a plan record: ", std::string(status.message())));
      }
      const uint64_t step = record.step();
      of_file[step] = std::move(record);
    }
    for (auto& [step, record] : of_file) {
      const auto [entry, fresh] = merged.try_emplace(step, record);
      if (fresh) continue;
      if (entry->second.plan_digest() != record.plan_digest()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, " and another record hold different plans of step ", step,
                         "; give the records of one run"));
      }
      MergeRanks(record.plan(), *entry->second.mutable_plan());
    }
  }
  if (merged.empty()) {
    return absl::InvalidArgumentError("the plan records to replay hold no plan");
  }
  return std::unique_ptr<PlanReplay>(new PlanReplay(std::move(merged)));
}

void PlanReplay::Request(const v1::GlobalBatch&) {}

std::optional<PlanOffer> PlanReplay::Wait(uint64_t step, absl::Time) {
  const auto found = records_.find(step);
  if (found == records_.end()) {
    absl::MutexLock lock(&mutex_);
    health_ = absl::NotFoundError(absl::StrCat("the plan record has no step ", step,
                                               " (it has steps ", records_.begin()->first, " to ",
                                               records_.rbegin()->first, ")"));
    return std::nullopt;
  }
  const v1::PlanRecord& record = found->second;
  PlanOffer offer;
  offer.leader_epoch = record.leader_epoch();
  offer.generation = record.generation();
  offer.step = step;
  offer.digest = record.plan_digest();
  offer.plan = std::make_shared<const v1::Plan>(record.plan());
  return offer;
}

absl::Status PlanReplay::Health() {
  absl::MutexLock lock(&mutex_);
  return health_;
}

}  // namespace sparsebalance
