// What follows from a job's spec alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// The spec as it is kept and fingerprinted: an empty namespace becomes `default`.
v1::JobSpec NormalizedSpec(v1::JobSpec spec);

// Digest of the normalized spec: covers every field.
uint64_t SpecFingerprint(const v1::JobSpec& normalized);

// Dotted paths of the fields that differ, in field order.
std::vector<std::string> DifferingFields(const v1::JobSpec& a, const v1::JobSpec& b);

// Sizes with 0 read as 1. Global rank = (data index * pipeline + stage) * sequence + sequence
// index.
class RankLayout {
 public:
  explicit RankLayout(const v1::Parallelism& parallelism);

  uint32_t count() const { return data_ * pipeline_ * sequence_; }
  uint32_t data_size() const { return data_; }
  uint32_t DataIndex(uint32_t rank) const { return rank / (pipeline_ * sequence_); }
  uint32_t Stage(uint32_t rank) const { return rank / sequence_ % pipeline_; }

 private:
  uint32_t data_;
  uint32_t pipeline_;
  uint32_t sequence_;
};

}  // namespace sparsebalance
