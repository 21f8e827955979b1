#include "coordinator/planner/coverage_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/byte_io.h"
#include "coordinator/planner/coverage_curve.h"

namespace sparsebalance::planner {
namespace {

constexpr uint32_t kVersion = 1;
constexpr double kUnit = 65535;
// More blocks than any plan takes; a default curve costs time in proportion to them.
constexpr uint64_t kMaxBlocks = uint64_t{1} << 24;
// Weight of the newest measurement in an average, once there are enough of them.
constexpr double kNewest = 0.05;
// Of a chunk of sequences; chunk 0 has this tag 0.
constexpr uint32_t kAveragesTag = 0;
constexpr uint32_t kSequencesTag = 1;

size_t BucketOf(uint32_t blocks) { return static_cast<size_t>(std::bit_width(blocks)) - 1; }

// Relative positions of an average: 0 at budget 1, 1 at all blocks, denser where budgets are small.
double RelativePosition(size_t index, size_t count) {
  const double u = static_cast<double>(index) / static_cast<double>(count - 1);
  return u * u * u;
}

}  // namespace

CoverageMemory::CoverageMemory(uint32_t block_tokens, size_t max_sequences)
    : block_tokens_(std::max<uint32_t>(1, block_tokens)),
      max_sequences_(std::clamp<size_t>(max_sequences, 1, kNone - 1)) {}

uint32_t CoverageMemory::Blocks(uint64_t tokens) const {
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(BlocksOf(tokens, block_tokens_), 1, kMaxBlocks));
}

absl::Status CoverageMemory::Observe(uint64_t id, uint64_t tokens, const v1::CoverageCurve& curve) {
  const uint32_t blocks = Blocks(tokens);
  if (absl::Status status = CheckCurve(curve, blocks); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("coverage of sequence ", id, " ", std::string(status.message())));
  }
  if (curve.budget_blocks_size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("coverage of sequence ", id, " has no points"));
  }
  std::array<uint16_t, kStored> coverage{};
  const std::vector<uint32_t> grid = CoverageGrid(blocks);
  for (size_t j = 1; j + 1 < grid.size() && j <= kStored; ++j) {
    coverage[j - 1] =
        static_cast<uint16_t>(std::lround(CoverageAt(curve, blocks, grid[j]) * kUnit));
  }
  Store(id, tokens, coverage);
  LearnAverage(blocks, curve);
  return absl::OkStatus();
}

absl::StatusOr<bool> CoverageMemory::PutIfAbsent(uint64_t id, uint64_t tokens,
                                                 const v1::CoverageCurve& curve) {
  if (Contains(id, tokens)) return false;
  if (absl::Status status = Observe(id, tokens, curve); !status.ok()) return status;
  return true;
}

bool CoverageMemory::Contains(uint64_t id, uint64_t tokens) const {
  const auto found = slot_of_.find(id);
  return found != slot_of_.end() && records_[found->second].tokens == tokens;
}

v1::CoverageCurve CoverageMemory::Lookup(uint64_t id, uint64_t tokens) const {
  const uint32_t blocks = Blocks(tokens);
  v1::CoverageCurve curve;
  const std::vector<uint32_t> grid = CoverageGrid(blocks);
  const auto finish = [&](const auto& coverage_at) {
    double least = 0;
    for (size_t j = 0; j < grid.size(); ++j) {
      if (j > kStored && j + 1 < grid.size()) continue;  // beyond what is stored: linear to the end
      least = j + 1 == grid.size() ? 1.0 : j == 0 ? 0.0 : std::max(least, coverage_at(j));
      curve.add_budget_blocks(grid[j]);
      curve.add_coverage(least);
    }
    return curve;
  };
  const auto found = slot_of_.find(id);
  if (found != slot_of_.end() && records_[found->second].tokens == tokens) {
    const Record& record = records_[found->second];
    return finish([&](size_t j) { return record.coverage[j - 1] / kUnit; });
  }
  const size_t bucket = BucketOf(blocks);
  const Average* average = nullptr;
  // The nearest length that was seen, shorter first.
  for (size_t away = 0; away < averages_.size() && average == nullptr; ++away) {
    if (away <= bucket && averages_[bucket - away].count > 0) {
      average = &averages_[bucket - away];
    } else if (bucket + away < averages_.size() && averages_[bucket + away].count > 0) {
      average = &averages_[bucket + away];
    }
  }
  if (average == nullptr || blocks == 1) return DefaultCurve(blocks);
  return finish([&](size_t j) {
    const double position = static_cast<double>(grid[j] - 1) / static_cast<double>(blocks - 1);
    size_t right = 1;
    while (right + 1 < kRelative && RelativePosition(right, kRelative) < position) ++right;
    const double x0 = RelativePosition(right - 1, kRelative);
    const double x1 = RelativePosition(right, kRelative);
    const double y0 = average->coverage[right - 1];
    const double y1 = average->coverage[right];
    return y0 + (y1 - y0) * ((position - x0) / (x1 - x0));
  });
}

void CoverageMemory::LearnAverage(uint32_t blocks, const v1::CoverageCurve& curve) {
  if (blocks < 2) return;  // says nothing about longer ones
  Average& average = averages_[BucketOf(blocks)];
  ++average.count;
  const double weight = std::max(kNewest, 1.0 / static_cast<double>(average.count));
  for (size_t j = 0; j < kRelative; ++j) {
    // Between two whole budgets linear, as curves are.
    const double budget = 1 + RelativePosition(j, kRelative) * (blocks - 1);
    const auto below = static_cast<uint32_t>(budget);
    const double low = CoverageAt(curve, blocks, below);
    const double high = CoverageAt(curve, blocks, std::min(blocks, below + 1));
    const double value = low + (high - low) * (budget - below);
    average.coverage[j] += weight * (value - average.coverage[j]);
  }
  MarkChanged(0);
}

void CoverageMemory::Store(uint64_t id, uint64_t tokens,
                           const std::array<uint16_t, kStored>& coverage) {
  uint32_t slot = kNone;
  if (const auto found = slot_of_.find(id); found != slot_of_.end()) {
    slot = found->second;
    Unlink(slot);
  } else if (records_.size() < max_sequences_) {
    slot = static_cast<uint32_t>(records_.size());
    // Doubling would leave up to half of the memory unused.
    if (records_.size() == records_.capacity()) {
      records_.reserve(
          std::min(max_sequences_, records_.size() + kSequencesPerChunk + records_.size() / 8));
    }
    records_.emplace_back();
    slot_of_[id] = slot;
  } else {
    slot = oldest_;
    Unlink(slot);
    slot_of_.erase(records_[slot].id);
    slot_of_[id] = slot;
  }
  records_[slot].id = id;
  records_[slot].tokens = tokens;
  records_[slot].coverage = coverage;
  MakeNewest(slot);
  MarkChanged(1 + slot / kSequencesPerChunk);
}

void CoverageMemory::Unlink(uint32_t slot) {
  const Record& r = records_[slot];
  (r.older == kNone ? oldest_ : records_[r.older].newer) = r.newer;
  (r.newer == kNone ? newest_ : records_[r.newer].older) = r.older;
}

void CoverageMemory::MakeNewest(uint32_t slot) {
  records_[slot].older = newest_;
  records_[slot].newer = kNone;
  (newest_ == kNone ? oldest_ : records_[newest_].newer) = slot;
  newest_ = slot;
}

void CoverageMemory::MarkChanged(size_t chunk) {
  if (changed_.size() <= chunk) changed_.resize(chunk + 1, false);
  changed_[chunk] = true;
}

size_t CoverageMemory::NumChunks() const {
  return 1 + (records_.size() + kSequencesPerChunk - 1) / kSequencesPerChunk;
}

std::vector<size_t> CoverageMemory::TakeChangedChunks() {
  std::vector<size_t> out;
  for (size_t i = 0; i < changed_.size(); ++i) {
    if (changed_[i]) out.push_back(i);
  }
  changed_.assign(changed_.size(), false);
  return out;
}

std::string CoverageMemory::Chunk(size_t index) const {
  ByteWriter out;
  out.Integer(kVersion);
  out.Integer(block_tokens_);
  if (index == 0) {
    out.Integer(kAveragesTag);
    for (const Average& average : averages_) {
      out.Integer(average.count);
      if (average.count == 0) continue;
      for (const double value : average.coverage) out.Double(value);
    }
    return out.Take();
  }
  const size_t begin = std::min((index - 1) * kSequencesPerChunk, records_.size());
  const size_t end = std::min(begin + kSequencesPerChunk, records_.size());
  out.Integer(kSequencesTag);
  out.Integer(static_cast<uint32_t>(end - begin));
  for (size_t slot = begin; slot < end; ++slot) {
    const Record& r = records_[slot];
    out.Integer(r.id);
    out.Integer(r.tokens);
    const size_t points = std::min(kStored, CoverageGrid(Blocks(r.tokens)).size());
    for (size_t j = 0; j < points; ++j) out.Integer(r.coverage[j]);
  }
  return out.Take();
}

absl::Status CoverageMemory::RestoreChunk(std::string_view bytes) {
  ByteReader in(bytes);
  const auto version = in.Integer<uint32_t>();
  const auto block = in.Integer<uint32_t>();
  const auto tag = in.Integer<uint32_t>();
  if (version != kVersion || block != block_tokens_ || tag > kSequencesTag) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of coverage memory has version ", version, " and blocks of ", block,
                     " tokens; expected are version ", kVersion, " and ", block_tokens_));
  }
  const absl::Status damaged =
      absl::InvalidArgumentError("a chunk of coverage memory is damaged; it is ignored");
  if (tag == kAveragesTag) {
    std::array<Average, 32> read;
    for (Average& average : read) {
      average.count = in.Integer<uint64_t>();
      if (average.count == 0) continue;
      for (double& value : average.coverage) {
        value = in.Double();
        if (!(value >= -1e-6 && value <= 1 + 1e-6)) return damaged;
      }
    }
    if (!in.ok() || !in.AtEnd()) return damaged;
    for (size_t b = 0; b < read.size(); ++b) {
      if (averages_[b].count == 0) averages_[b] = read[b];
    }
    MarkChanged(0);
    return absl::OkStatus();
  }
  const auto count = in.Integer<uint32_t>();
  if (count > kSequencesPerChunk) return damaged;
  std::vector<Record> read(count);
  for (Record& r : read) {
    r.id = in.Integer<uint64_t>();
    r.tokens = in.Integer<uint64_t>();
    if (r.tokens == 0) return damaged;
    r.coverage.fill(0);
    const size_t points = std::min(kStored, CoverageGrid(Blocks(r.tokens)).size());
    for (size_t j = 0; j < points; ++j) r.coverage[j] = in.Integer<uint16_t>();
  }
  if (!in.ok() || !in.AtEnd()) return damaged;
  for (const Record& r : read) {
    if (!slot_of_.contains(r.id)) Store(r.id, r.tokens, r.coverage);
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::planner
