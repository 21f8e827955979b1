// Putting sequences into ranks and micro-batches within the token caps.
//
// All functions break ties by the lower group, then the lower sequence index, so that a result
// depends on the set of sequences and not on their order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {

// Micro-batches that each rank of a reference policy gets: `micro_batches_per_rank`, else as many
// as `micro_batch_size` makes of an even share of the batch, else 0 (as few as the cap allows).
int ReferenceCount(const Problem& problem, int sequences, int ranks);

// Longest processing time first: sequences by falling weight, each to the rank with the least load
// that may take it. At most `most` sequences a rank (0: any number); where the job fixes the number
// of micro-batches, a rank's padded tokens stay within all its micro-batches' caps together.
// `weights` by sequence index, in any unit; a rank's load is multiplied by its time factor where
// `use_speed`. Sequences that no rank may take are left out: PackBatching repairs that.
std::vector<std::vector<int32_t>> AssignToRanks(const Problem& problem,
                                                const std::vector<int64_t>& weights, int most,
                                                bool use_speed);

// LPT of one rank's sequences into `count` micro-batches of at most `most` sequences (0: any
// number) within the rank's cap. More micro-batches are opened as needed unless `fixed`. Nothing
// where the sequences do not fit. Micro-batches may come out empty only where `fixed`.
std::optional<RankItems> PackRank(const Problem& problem, int rank, std::vector<int32_t> items,
                                  const std::vector<int64_t>& weights, int count, int most,
                                  bool fixed);

// As few micro-batches as best fit by padded tokens finds; not always the least number.
RankItems PackTightly(const Problem& problem, int rank, std::vector<int32_t> items);

// Packs each rank's sequences by PackRank, with micro-batches of `micro_batch_size`, and makes the
// counts what the job asks for. Where the given ranks cannot be packed, sequences are spread anew
// over all micro-batches. InfeasiblePlan where no packing is found.
absl::StatusOr<Batching> PackBatching(const Problem& problem,
                                      const std::vector<std::vector<int32_t>>& ranks,
                                      const std::vector<int64_t>& weights);

// A packing of all sequences into exactly `count` micro-batches on every rank.
absl::StatusOr<Batching> PackFixedCounts(const Problem& problem,
                                         const std::vector<int64_t>& weights, int count);

// Adds zero-weight micro-batches where the job asks for equal counts; removes empty ones where it
// does not.
void FinishCounts(const Problem& problem, Batching& batching);

}  // namespace sparsebalance::planner
