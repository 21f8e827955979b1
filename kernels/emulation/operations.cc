// What a thread of a kernel calls, but for matrices: barriers, shuffles, votes, copies.

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/emulation/executor.h"

namespace sparsebalance::kernels::emulation {

constinit thread_local ThreadContext* current_thread = nullptr;
const Region kNoRegion;

void SyncThreads(const CallSite& site) {
  Thread& thread = CurrentThread();
  thread.executor->SyncThreads(thread, site);
}

void SyncWarp(uint32_t mask, const CallSite& site) {
  Thread& thread = CurrentThread();
  thread.executor->Gather(thread, Operation::kSyncWarp, mask, site, nullptr, nullptr);
}

namespace {

struct ShuffleOperand {
  int source;  // lane
  uint64_t bits, result;
};

// The lane whose value `lane` gets, by the description of shfl.sync in the PTX ISA.
int SourceLane(Shuffle kind, int lane, int argument, int width) {
  const int first = lane & ~(width - 1);
  const int last = first + width - 1;
  int source = lane;
  switch (kind) {
    case Shuffle::kIndex:
      return first + (argument & (width - 1));
    case Shuffle::kUp:
      source = lane - argument;
      return source < first ? lane : source;
    case Shuffle::kDown:
      source = lane + argument;
      break;
    case Shuffle::kXor:
      source = lane ^ argument;
      break;
  }
  return source > last ? lane : source;
}

}  // namespace

uint64_t ShuffleBits(Shuffle kind, uint32_t mask, uint64_t bits, int argument, int width,
                     const CallSite& site) {
  Thread& thread = CurrentThread();
  if (width < 1 || width > kWarpSize || (width & (width - 1)) != 0) {
    Fail(absl::StrCat("Shfl with a width of ", width, ", which is not a power of 2 up to 32"));
  }
  if (kind != Shuffle::kIndex && (argument < 0 || argument >= kWarpSize)) {
    Fail(absl::StrCat("Shfl by ", argument, " lanes; it takes 0 to 31"));
  }
  ShuffleOperand operand{SourceLane(kind, thread.linear % kWarpSize, argument, width), bits, 0};
  const uint32_t readable = mask & thread.executor->lanes_of_warp(thread);
  const bool in_mask = ((mask >> (thread.linear % kWarpSize)) & 1U) != 0;
  if (in_mask && ((readable >> operand.source) & 1U) == 0) {
    Fail(absl::StrCat("Shfl at ", site.file, ":", site.line, " reads lane ", operand.source,
                      ", which does not take part in it (mask 0x", absl::Hex(mask, absl::kZeroPad8),
                      ")"));
  }
  thread.executor->Gather(
      thread, Operation::kShuffle, mask, site, &operand, [](const WarpOperation& operation) {
        for (uint32_t left = operation.mask; left != 0; left &= left - 1) {
          auto& to = *static_cast<ShuffleOperand*>(operation.operands[std::countr_zero(left)]);
          to.result = static_cast<ShuffleOperand*>(operation.operands[to.source])->bits;
        }
      });
  return operand.result;
}

uint32_t Ballot(uint32_t mask, bool predicate, const CallSite& site) {
  Thread& thread = CurrentThread();
  uint32_t vote = predicate ? 1 : 0;
  thread.executor->Gather(
      thread, Operation::kVote, mask, site, &vote, [](const WarpOperation& operation) {
        uint32_t votes = 0;
        for (uint32_t left = operation.mask; left != 0; left &= left - 1) {
          const int lane = std::countr_zero(left);
          votes |= *static_cast<uint32_t*>(operation.operands[lane]) << lane;
        }
        for (uint32_t left = operation.mask; left != 0; left &= left - 1) {
          *static_cast<uint32_t*>(operation.operands[std::countr_zero(left)]) = votes;
        }
      });
  return vote;
}

const Region& StaticShared(const SharedSite& site) {
  Thread& thread = CurrentThread();
  return thread.executor->StaticShared(thread, site);
}

const Region& DynamicShared() { return CurrentThread().executor->DynamicShared(); }

void CopyAsync(std::byte* to, const std::byte* from, int bytes, int source_bytes) {
  Thread& thread = CurrentThread();
  PendingCopy& copy = thread.copies.emplace_back();
  copy.to = to;
  copy.bytes = bytes;
  copy.data.fill(std::byte{0});
  if (source_bytes > 0) std::memcpy(copy.data.data(), from, source_bytes);
  std::memset(to, 0xFF, bytes);
}

void CommitCopies() {
  Thread& thread = CurrentThread();
  thread.groups.push_back(thread.copies.size());
}

void WaitForCopies(int pending) {
  Thread& thread = CurrentThread();
  size_t done = thread.copies.size();
  size_t groups = thread.groups.size();
  if (pending >= 0) {
    if (groups <= static_cast<size_t>(pending)) return;
    groups -= pending;
    done = thread.groups[groups - 1];
  }
  for (size_t i = 0; i < done; ++i) {
    const PendingCopy& copy = thread.copies[i];
    std::memcpy(copy.to, copy.data.data(), copy.bytes);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + done);
  thread.groups.erase(thread.groups.begin(), thread.groups.begin() + groups);
  for (size_t& group : thread.groups) group -= done;
}

void NoteAtomic(bool changed) {
  Thread& thread = CurrentThread();
  thread.executor->NoteAtomic(thread, changed);
}

}  // namespace sparsebalance::kernels::emulation
