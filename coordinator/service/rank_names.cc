#include "coordinator/service/rank_names.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

template <typename T>
std::string Names(const char* noun, const std::vector<T>& numbers) {
  if (numbers.empty()) return absl::StrCat("no ", noun);
  constexpr int kMaxRuns = 8;
  std::string names = absl::StrCat(noun, numbers.size() == 1 ? " " : "s ");
  int runs = 0;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (runs == kMaxRuns) {
      absl::StrAppend(&names, " and ", numbers.size() - begin, " more");
      break;
    }
    absl::StrAppend(&names, runs == 0 ? "" : ", ", numbers[begin]);
    if (end - begin > 1) absl::StrAppend(&names, "-", numbers[end - 1]);
    begin = end;
    ++runs;
  }
  return names;
}

}  // namespace

std::string RankNames(const std::vector<uint32_t>& ranks) { return Names("rank", ranks); }
std::string StepNames(const std::vector<uint64_t>& steps) { return Names("step", steps); }

}  // namespace sparsebalance
