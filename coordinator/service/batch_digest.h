// The digest by which nodes agree that they mean the same global batch.
#pragma once

#include <cstdint>

#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// First eight bytes, read as a big-endian integer, of SHA-256 over little-endian 64-bit integers:
// step, epoch, then id, tokens and supervised tokens of every sequence in order. Where a sequence
// was deferred or batches follow, then also: the number of sequences and each one's deferred steps,
// and for each following batch its step, its number of sequences, and id, tokens, supervised tokens
// and deferred steps of each. batch.digest is not looked at.
uint64_t BatchDigest(const v1::GlobalBatch& batch);

}  // namespace sparsebalance
