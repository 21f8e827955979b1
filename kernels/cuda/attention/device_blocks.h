#pragma once

// The device's copy of PackedBlocks, as the attention kernels take it.

#include <cstdint>

#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

struct DeviceBlocks {
  int block_tokens = 0;
  int64_t tokens = 0, sequences = 0, blocks = 0;
  int64_t most_blocks = 0;                  // of a sequence
  DevicePtr<const int64_t> cu_seqlens;      // [sequences + 1]
  DevicePtr<const int64_t> first_block;     // [sequences + 1]
  DevicePtr<const int64_t> block_begin;     // [blocks + 1]
  DevicePtr<const int32_t> block_sequence;  // [blocks]
};

}  // namespace sparsebalance::kernels::cuda
