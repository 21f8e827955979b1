#pragma once

// What a running emulated kernel can ask for: who it is, barriers, operations of a warp,
// asynchronous copies, matrix products. The headers in kernels/cuda/device give these their public
// names; kernels do not include this file.
//
// Everything here is called by a thread of a kernel. Whatever a device would answer with undefined
// behaviour stops the kernel: the launch returns an error that names kernel, block and thread.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/cuda/device/types.h"
#include "kernels/emulation/pointer.h"

namespace sparsebalance::kernels::emulation {

using cuda::Dim3;

// Where the kernel called an operation.
struct CallSite {
  const char* file = "";
  int line = 0;
};

struct GridContext {
  Dim3 grid_dim, block_dim, block_index;
};

struct ThreadContext {
  Dim3 index;
  int linear = 0;  // x fastest; warp w holds threads 32 w to 32 w + 31
  const GridContext* grid = nullptr;
};

inline constexpr int kWarpSize = 32;

// Stops the kernel with this message.
[[noreturn]] void Fail(const std::string& message);

void SyncThreads(const CallSite& site);

// --- operations of a warp ---------------------------------------------------------------------
// Each waits until all lanes of `mask` that the block has are at the same call site.

void SyncWarp(uint32_t mask, const CallSite& site);

enum class Shuffle : uint8_t { kIndex, kUp, kDown, kXor };

// The `bits` of the lane that `argument` (lane, distance or mask) selects within `width` lanes.
uint64_t ShuffleBits(Shuffle kind, uint32_t mask, uint64_t bits, int argument, int width,
                     const CallSite& site);

// Bit l is lane l's predicate.
uint32_t Ballot(uint32_t mask, bool predicate, const CallSite& site);

// The 8x8 matrices of 16-bit elements whose rows of 16 bytes the lanes point at, `count` in
// {1, 2, 4}; `row` is that of this lane, or null where its address is not used.
void LoadMatrices(uint32_t* registers, int count, bool transposed, const std::byte* row,
                  const CallSite& site);

// d = a b + c for a 16x16, b 16x8 (bf16) and d, c 16x8 (float), by the fragments of the PTX ISA.
void MultiplyMatrices(float* d, const uint32_t* a, const uint32_t* b, const float* c,
                      const CallSite& site);

// --- memory -----------------------------------------------------------------------------------

// The shared array that belongs to a declaration; `site` is an object of static storage.
struct SharedSite {
  const char* name;
  uint64_t bytes;
};
const Region& StaticShared(const SharedSite& site);
const Region& DynamicShared();

// Poisons `bytes` at `to`; what is read now, followed by zeros, appears there when the thread
// waits.
void CopyAsync(std::byte* to, const std::byte* from, int bytes, int source_bytes);
void CommitCopies();
// Waits for all groups but the last `pending`; -1: for everything, committed or not.
void WaitForCopies(int pending);

// Every atomic operation says whether it changed memory, so that a thread which only polls lets
// others run, and stops the kernel when nothing else happens any more.
void NoteAtomic(bool changed);

}  // namespace sparsebalance::kernels::emulation
