// What the emulation says when a kernel is wrong.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/emulation/executor.h"

namespace sparsebalance::kernels::emulation {
namespace {

// "3, 5-7"
std::string Ranges(const std::vector<int>& ascending) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ascending.size();) {
    size_t end = i + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    ranges.push_back(end - i == 1 ? absl::StrCat(ascending[i])
                                  : absl::StrCat(ascending[i], "-", ascending[end - 1]));
    i = end;
  }
  return absl::StrJoin(ranges, ", ");
}

}  // namespace

std::string ToString(const Dim3& index) {
  return absl::StrCat("[", index.x, ", ", index.y, ", ", index.z, "]");
}

bool SameSite(const CallSite& a, const CallSite& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "nothing";
    case Operation::kSyncThreads:
      return "SyncThreads";
    case Operation::kSyncWarp:
      return "SyncWarp";
    case Operation::kShuffle:
      return "Shfl";
    case Operation::kVote:
      return "Ballot, Any or All";
    case Operation::kLdMatrix:
      return "LdMatrix";
    case Operation::kMma:
      return "MmaM16N8K16";
    case Operation::kPoll:
      return "atomic operations";
  }
  return "?";
}

std::string DescribeWaiting(const std::vector<Thread>& threads, int num_threads) {
  std::map<std::string, std::vector<int>> by_state;
  for (int t = 0; t < num_threads; ++t) {
    const Thread& thread = threads[t];
    std::string state = "returned";
    if (thread.waits_for == Operation::kPoll) {
      state = "polling memory";
    } else if (!thread.exited) {
      state = absl::StrCat("waiting at ", Name(thread.waits_for), " (", thread.site.file, ":",
                           thread.site.line);
      if (thread.waits_for != Operation::kSyncThreads) {
        absl::StrAppend(&state, ", mask 0x", absl::Hex(thread.mask, absl::kZeroPad8));
      }
      state += ")";
    }
    by_state[state].push_back(t);
  }
  std::vector<std::string> parts;
  parts.reserve(by_state.size());
  for (const auto& [state, members] : by_state) {
    parts.push_back(
        absl::StrCat(state, members.size() == 1 ? ": thread " : ": threads ", Ranges(members)));
  }
  return absl::StrJoin(parts, "; ");
}

std::string Executor::DescribeStuck() const {
  bool only_barriers = true;
  for (int t = 0; t < num_threads_; ++t) {
    only_barriers &= threads_[t].exited || threads_[t].waits_for == Operation::kSyncThreads;
  }
  return absl::StrCat(only_barriers ? "divergent barrier: " : "deadlock: ",
                      DescribeWaiting(threads_, num_threads_));
}

std::string Executor::Blame(const Thread* thread, const std::string& message) const {
  std::string who = absl::StrCat("kernel '", kernel_, "', block ", ToString(grid_.block_index));
  if (thread != nullptr) absl::StrAppend(&who, ", thread ", ToString(thread->index));
  return absl::StrCat(who, ": ", message);
}

void Fail(const std::string& message) {
  if (current_thread == nullptr) {
    // With a GPU, a host that reads device memory ends in the same way.
    std::fprintf(stderr, "emulated device used by the host, outside of a kernel: %s\n",
                 message.c_str());
    std::abort();
  }
  Thread& thread = CurrentThread();
  thread.executor->Stop(thread, absl::InternalError(message));
}

void FailAccess(const Region& region, uint32_t generation, uint64_t offset, uint64_t bytes,
                uint64_t alignment) {
  if (&region == &kNoRegion) {
    Fail(absl::StrCat("access of ", bytes, " bytes through a null pointer"));
  }
  const char* space = region.space == Space::kShared ? "shared array" : "allocation";
  if (generation != region.generation) {
    Fail(absl::StrCat("use after free: access of ", bytes, " bytes at byte ",
                      static_cast<int64_t>(offset), " of an ", space,
                      " that is no longer there; the last one at its place was '", region.name,
                      "'"));
  }
  const std::string what =
      absl::StrCat("access of ", bytes, " bytes at byte ", static_cast<int64_t>(offset), " of ",
                   space, " '", region.name, "', which has ", region.bytes, " bytes");
  if (offset > region.bytes || offset + bytes > region.bytes) {
    Fail(absl::StrCat("out of bounds: ", what));
  }
  if (offset % alignment != 0) {
    Fail(absl::StrCat("misaligned: ", what, "; it needs a multiple of ", alignment));
  }
  Fail(what);
}

}  // namespace sparsebalance::kernels::emulation
