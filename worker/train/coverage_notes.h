// What a rank measured about the coverage of sequences, kept so that a checkpoint carries it: a
// coordinator that starts with nothing gets it back from there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

class CoverageNotes {
 public:
  // At most `most` sequences, about 150 bytes each; further ones are not taken.
  explicit CoverageNotes(size_t most = 1'000'000) : most_(most) {}

  // The latest measurement of a sequence replaces the one before.
  void Put(const v1::SequenceTelemetry& telemetry);

  std::vector<v1::SequenceCoverage> Entries() const;  // by id
  size_t size() const { return notes_.size(); }

  // One file with its own checksum. DATA_LOSS for a damaged one.
  absl::Status Save(const std::string& path) const;
  static absl::StatusOr<std::vector<v1::SequenceCoverage>> Load(const std::string& path);

  // For people and `sbctl simulate --coverage`: a JSON object a line with tokens, budget_blocks and
  // coverage, by id.
  std::string JsonLines() const;

  void PutAll(const std::vector<v1::SequenceCoverage>& entries);

 private:
  struct Note {
    uint64_t tokens = 0;
    std::vector<uint32_t> budgets;
    std::vector<float> coverage;
  };
  void Put(uint64_t id, uint64_t tokens, const v1::CoverageCurve& curve);

  size_t most_;
  std::map<uint64_t, Note> notes_;
};

}  // namespace sparsebalance
