#include "kernels/packed_blocks.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/coverage_guard.h"

namespace sparsebalance::kernels {

absl::StatusOr<PackedBlocks> MakePackedBlocks(const std::vector<int64_t>& cu_seqlens,
                                              int block_tokens) {
  if (block_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_tokens is ", block_tokens, "; it must be at least 1"));
  }
  if (cu_seqlens.size() < 2 || cu_seqlens.front() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cu_seqlens has ", cu_seqlens.size(),
        " entries; it must start with 0 and have one entry more than there are sequences, "
        "at least 2 (an empty micro-batch is run on a one-token dummy of weight 0)"));
  }
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    if (cu_seqlens[s + 1] <= cu_seqlens[s]) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", s, " has ", cu_seqlens[s + 1] - cu_seqlens[s],
                       " tokens in cu_seqlens; every sequence needs at least 1"));
    }
  }
  if (cu_seqlens.back() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a micro-batch of ", cu_seqlens.back(),
                     " tokens exceeds the 2^31 - 1 that a block list can number; split it"));
  }
  PackedBlocks out;
  out.block_tokens = block_tokens;
  out.cu_seqlens = cu_seqlens;
  out.first_block.push_back(0);
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (int64_t t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t += block_tokens) {
      out.block_begin.push_back(t);
      out.block_sequence.push_back(static_cast<int32_t>(s));
    }
    out.first_block.push_back(static_cast<int64_t>(out.block_begin.size()));
  }
  out.block_begin.push_back(cu_seqlens.back());
  return out;
}

std::vector<int64_t> CoverageGrid(int64_t blocks) {
  std::vector<int64_t> grid;
  for (int64_t power = 1; power < blocks; power *= 2) {
    grid.push_back(power);
    if (power >= 2 && power + power / 2 < blocks) grid.push_back(power + power / 2);
  }
  grid.push_back(blocks);
  return grid;
}

double InterpolateCoverage(int64_t blocks, const std::vector<double>& curve, int64_t budget) {
  return CoverageAt(blocks, curve, budget);
}

double AttendedPairs(int64_t tokens, int block_tokens, int64_t budget) {
  double pairs = 0;
  const double full = block_tokens;
  for (int64_t begin = 0, past = 0; begin < tokens; begin += block_tokens, ++past) {
    const auto own = static_cast<double>(std::min<int64_t>(block_tokens, tokens - begin));
    const auto selected = static_cast<double>(std::min(std::max<int64_t>(budget, 1) - 1, past));
    pairs += own * (own + 1) / 2 + own * full * selected;
  }
  return pairs;
}

}  // namespace sparsebalance::kernels
