#include "worker/train/coverage_notes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/train/file_util.h"

namespace sparsebalance {

void CoverageNotes::Put(const v1::SequenceTelemetry& telemetry) {
  if (telemetry.coverage().budget_blocks().empty()) return;
  Put(telemetry.sequence_id(), telemetry.tokens(), telemetry.coverage());
}

void CoverageNotes::Put(uint64_t id, uint64_t tokens, const v1::CoverageCurve& curve) {
  if (notes_.size() >= most_ && !notes_.contains(id)) return;
  Note& note = notes_[id];
  note.tokens = tokens;
  note.budgets.assign(curve.budget_blocks().begin(), curve.budget_blocks().end());
  note.coverage.assign(curve.coverage().begin(), curve.coverage().end());
}

void CoverageNotes::PutAll(const std::vector<v1::SequenceCoverage>& entries) {
  for (const v1::SequenceCoverage& entry : entries) {
    Put(entry.sequence_id(), entry.tokens(), entry.coverage());
  }
}

std::vector<v1::SequenceCoverage> CoverageNotes::Entries() const {
  std::vector<v1::SequenceCoverage> entries;
  entries.reserve(notes_.size());
  for (const auto& [id, note] : notes_) {
    v1::SequenceCoverage& entry = entries.emplace_back();
    entry.set_sequence_id(id);
    entry.set_tokens(note.tokens);
    for (const uint32_t budget : note.budgets) entry.mutable_coverage()->add_budget_blocks(budget);
    for (const float value : note.coverage) entry.mutable_coverage()->add_coverage(value);
  }
  return entries;
}

std::string CoverageNotes::JsonLines() const {
  std::string lines;
  for (const auto& [id, note] : notes_) {
    absl::StrAppend(&lines, "{\"sequence_id\": ", id, ", \"tokens\": ", note.tokens,
                    ", \"budget_blocks\": [", absl::StrJoin(note.budgets, ", "),
                    "], \"coverage\": [");
    for (size_t i = 0; i < note.coverage.size(); ++i) {
      absl::StrAppendFormat(&lines, "%s%.9g", i == 0 ? "" : ", ", note.coverage[i]);
    }
    absl::StrAppend(&lines, "]}\n");
  }
  return lines;
}

absl::Status CoverageNotes::Save(const std::string& path) const {
  v1::PutCoverageRequest all;
  for (v1::SequenceCoverage& entry : Entries()) *all.add_entries() = std::move(entry);
  const std::string bytes = all.SerializeAsString();
  return WriteFile(path, Sha256Hex(bytes) + bytes);
}

absl::StatusOr<std::vector<v1::SequenceCoverage>> CoverageNotes::Load(const std::string& path) {
  absl::StatusOr<std::string> file = ReadFile(path);
  if (!file.ok()) return file.status();
  constexpr size_t kChecksum = 64;
  v1::PutCoverageRequest all;
  if (file->size() < kChecksum ||
      Sha256Hex(file->substr(kChecksum)) != file->substr(0, kChecksum) ||
      !all.ParseFromString(file->substr(kChecksum))) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum does not fit"));
  }
  return std::vector<v1::SequenceCoverage>(all.entries().begin(), all.entries().end());
}

}  // namespace sparsebalance
