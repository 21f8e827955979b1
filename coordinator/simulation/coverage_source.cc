#include "coordinator/simulation/coverage_source.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/simulation/json_object.h"

namespace sparsebalance::simulation {
namespace {

constexpr double kLowestAlpha = 0.6;
constexpr double kHighestAlpha = 1.8;
// Recorded curves of so much more or fewer blocks are as good as the nearest one.
constexpr double kNear = 1.25;

CoverageSource Family(double low, double high) {
  return {absl::StrCat("power family, alpha uniform in ", low, "..", high),
          [low, high](uint32_t blocks, Random& random) {
            return planner::PowerCurve(blocks, random.Between(low, high));
          }};
}

struct Recorded {
  uint32_t blocks;
  v1::CoverageCurve curve;
};

absl::StatusOr<Recorded> ParseCurve(const std::string& line) {
  nlohmann::json json;
  if (absl::Status s = ParseJson(line, json); !s.ok()) return s;
  JsonObject object(json, "");
  uint64_t ignored = 0;
  object.Uint64("sequence_id", ignored);
  object.Uint64("tokens", ignored);
  const nlohmann::json* budgets = object.Array("budget_blocks", /*required=*/true);
  const nlohmann::json* coverage = object.Array("coverage", /*required=*/true);
  if (absl::Status s = object.Finish(); !s.ok()) return s;
  Recorded out{};
  for (const nlohmann::json& b : *budgets) {
    if (!b.is_number_unsigned() || b.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      object.Fail("budget_blocks", "whole numbers");
      return object.status();
    }
    out.curve.add_budget_blocks(b.get<uint32_t>());
  }
  for (const nlohmann::json& c : *coverage) {
    if (!c.is_number()) {
      object.Fail("coverage", "numbers");
      return object.status();
    }
    out.curve.add_coverage(c.get<double>());
  }
  if (out.curve.budget_blocks_size() == 0) {
    object.Fail("budget_blocks", "at least one budget");
    return object.status();
  }
  out.blocks = out.curve.budget_blocks(out.curve.budget_blocks_size() - 1);
  if (absl::Status s = planner::CheckCurve(out.curve, out.blocks); !s.ok()) return s;
  return out;
}

// The same shape over another number of blocks.
v1::CoverageCurve Stretched(const Recorded& recorded, uint32_t blocks) {
  v1::CoverageCurve out;
  const v1::CoverageCurve& curve = recorded.curve;
  for (const uint32_t budget : planner::CoverageGrid(blocks)) {
    const double at =
        blocks == 1 ? 1
                    : 1 + static_cast<double>(budget - 1) * (recorded.blocks - 1) / (blocks - 1);
    int upper = 0;
    while (upper + 1 < curve.budget_blocks_size() && curve.budget_blocks(upper) < at) ++upper;
    double value = curve.coverage(upper);
    if (upper > 0) {
      const double low = curve.budget_blocks(upper - 1);
      const double width = curve.budget_blocks(upper) - low;
      value = curve.coverage(upper - 1) +
              (value - curve.coverage(upper - 1)) * std::clamp((at - low) / width, 0.0, 1.0);
    }
    out.add_budget_blocks(budget);
    out.add_coverage(budget == blocks ? 1 : value);
  }
  return out;
}

absl::StatusOr<CoverageSource> FromFile(const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    return absl::NotFoundError(
        absl::StrCat("coverage \"", path, "\" is neither `family` nor a file that can be opened"));
  }
  auto curves = std::make_shared<std::vector<Recorded>>();
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<Recorded> curve = ParseCurve(line);
    if (!curve.ok()) {
      return absl::Status(curve.status().code(),
                          absl::StrCat(path, ":", number, ": ", curve.status().message()));
    }
    // One block says nothing about any other length.
    if (curve->blocks > 1) curves->push_back(*std::move(curve));
  }
  if (curves->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no curve of two blocks or more"));
  }
  std::stable_sort(curves->begin(), curves->end(),
                   [](const Recorded& a, const Recorded& b) { return a.blocks < b.blocks; });
  return CoverageSource{
      absl::StrCat(curves->size(), " recorded curves of ", path),
      [curves](uint32_t blocks, Random& random) {
        if (blocks == 1) return planner::PowerCurve(1, 1);
        const auto below = [](const Recorded& c, double b) { return c.blocks < b; };
        auto first = std::lower_bound(curves->begin(), curves->end(), blocks / kNear, below);
        auto last = std::lower_bound(first, curves->end(), blocks * kNear, below);
        if (first == last) {
          // None is near: the nearest on either side.
          if (first == curves->end()) --first;
          last = first + 1;
        }
        return Stretched(*(first + static_cast<std::ptrdiff_t>(
                                       random.Below(static_cast<uint64_t>(last - first)))),
                         blocks);
      }};
}

}  // namespace

absl::StatusOr<CoverageSource> LoadCoverage(const std::string& family_or_path) {
  if (family_or_path == "family") return Family(kLowestAlpha, kHighestAlpha);
  if (!absl::StartsWith(family_or_path, "family:")) return FromFile(family_or_path);
  const std::vector<std::string> parts = absl::StrSplit(family_or_path, ':');
  double low = 0;
  double high = 0;
  if (parts.size() != 3 || !absl::SimpleAtod(parts[1], &low) ||
      !absl::SimpleAtod(parts[2], &high) || !(low >= 0 && low <= high && high <= 16)) {
    return absl::InvalidArgumentError(
        absl::StrCat("coverage is \"", family_or_path,
                     "\": expected family:LOW:HIGH with 0 <= LOW <= HIGH <= 16"));
  }
  return Family(low, high);
}

}  // namespace sparsebalance::simulation
