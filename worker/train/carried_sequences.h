// What look-ahead has changed in the order of an epoch.
//
// The sampler's order stays as it is; a few of its places hold another sequence. Two sequences that
// are exchanged take each other's places, so every batch keeps its size and every sequence of the
// epoch is trained exactly once, whatever is exchanged.
#pragma once

#include <cstdint>

namespace sparsebalance {

struct CarriedSequence {
  uint64_t place = 0;      // id that the sampler has there; unique
  uint64_t id = 0;         // that is trained in its place
  uint64_t home_step = 0;  // step that the sampler gave to `id`

  friend bool operator==(const CarriedSequence&, const CarriedSequence&) = default;
};

}  // namespace sparsebalance
