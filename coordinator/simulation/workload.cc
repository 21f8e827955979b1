#include "coordinator/simulation/workload.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/simulation/csv.h"
#include "worker/data/indexed_dataset.h"

namespace sparsebalance::simulation {
namespace {

constexpr double kLongestSequence = 1e9;

uint64_t Rounded(double tokens) {
  return static_cast<uint64_t>(std::max(1.0, std::floor(tokens + 0.5)));
}

// From `low` to `high`, the same weight for every factor of two.
double LogUniform(Random& random, double low, double high) {
  return low * std::exp(random.Unit() * std::log(high / low));
}

Workload ChatQa2Like() {
  return {
      "chatqa2-like",
      "an approximation of ChatQA2-Long-SFT after its published description (two peaks, many "
      "sequences below 4K tokens and many above 16K, up to 32K): 45 % log-uniform in 256..4096, "
      "55 % uniform in 16384..32768",
      [](Random& random) {
        return random.Unit() < 0.45 ? Rounded(LogUniform(random, 256, 4096))
                                    : Rounded(random.Between(16384, 32768));
      }};
}

Workload LongAlignLike() {
  return {"longalign-like",
          "an approximation of LongAlign-10k after its published description (a long tail from 8K "
          "to 72K tokens): 8192 plus an exponential tail of mean 14000, cut at 73728",
          [](Random& random) {
            double tokens = 0;
            do {
              tokens = 8192 - 14000 * std::log(1 - random.Unit());
            } while (tokens > 73728);
            return Rounded(tokens);
          }};
}

// Without replacement: every length once, in a new order every epoch.
Workload FromList(std::string name, std::string description, std::vector<uint64_t> lengths) {
  struct Epoch {
    std::vector<uint64_t> lengths;
    size_t next = 0;
  };
  auto epoch = std::make_shared<Epoch>();
  epoch->lengths = std::move(lengths);
  epoch->next = epoch->lengths.size();
  return {std::move(name), std::move(description), [epoch](Random& random) {
            std::vector<uint64_t>& all = epoch->lengths;
            if (epoch->next == all.size()) {
              for (size_t i = all.size() - 1; i > 0; --i) {
                std::swap(all[i], all[random.Below(i + 1)]);
              }
              epoch->next = 0;
            }
            return all[epoch->next++];
          }};
}

absl::Status BadRow(const std::string& path, const NumberTable& table, size_t row,
                    const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", table.lines[row], ": ", what));
}

absl::StatusOr<Workload> FromQuantiles(const std::string& path, const NumberTable& table) {
  std::vector<std::pair<double, double>> points;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const double quantile = table.rows[r][0];
    const double tokens = table.rows[r][1];
    if (!(quantile >= 0 && quantile <= 1)) {
      return BadRow(path, table, r, absl::StrCat("quantile is ", quantile, ", must be in [0, 1]"));
    }
    if (!(tokens >= 1 && tokens <= kLongestSequence)) {
      return BadRow(path, table, r, absl::StrCat("tokens is ", tokens, ", must be at least 1"));
    }
    if (!points.empty() && (quantile < points.back().first || tokens < points.back().second)) {
      return BadRow(path, table, r, "quantiles and tokens must not fall from line to line");
    }
    points.emplace_back(quantile, tokens);
  }
  return Workload{path, absl::StrCat("lengths by the quantile table ", path),
                  [points = std::move(points)](Random& random) {
                    const double u = random.Unit();
                    const auto upper = std::lower_bound(
                        points.begin(), points.end(), u,
                        [](const auto& point, double value) { return point.first < value; });
                    if (upper == points.begin()) return Rounded(points.front().second);
                    if (upper == points.end()) return Rounded(points.back().second);
                    const auto lower = upper - 1;
                    const double width = upper->first - lower->first;
                    const double share = width > 0 ? (u - lower->first) / width : 1;
                    return Rounded(lower->second + share * (upper->second - lower->second));
                  }};
}

absl::StatusOr<Workload> FromLengths(const std::string& path, const NumberTable& table) {
  std::vector<uint64_t> lengths;
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const double tokens = table.rows[r][0];
    if (!(tokens >= 1 && tokens <= kLongestSequence && tokens == std::floor(tokens))) {
      return BadRow(path, table, r,
                    absl::StrCat("a length is ", tokens, ", must be a whole number of at least 1"));
    }
    lengths.push_back(static_cast<uint64_t>(tokens));
  }
  std::string description = absl::StrCat(lengths.size(), " lengths of ", path);
  return FromList(path, std::move(description), std::move(lengths));
}

absl::StatusOr<Workload> FromDataset(const std::string& path) {
  const std::string prefix = path.substr(0, path.size() - 4);
  absl::StatusOr<data::IndexedDataset> dataset = data::IndexedDataset::Open(prefix);
  if (!dataset.ok()) return dataset.status();
  std::vector<uint64_t> lengths;
  for (const int32_t n : dataset->lengths()) {
    if (n > 0) lengths.push_back(static_cast<uint64_t>(n));
  }
  if (lengths.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no sequence with tokens"));
  }
  std::string description = absl::StrCat(lengths.size(), " sequences of the dataset ", path);
  return FromList(path, std::move(description), std::move(lengths));
}

}  // namespace

std::vector<std::string> BuiltInWorkloads() { return {"chatqa2-like", "longalign-like"}; }

absl::StatusOr<Workload> LoadWorkload(const std::string& name_or_path) {
  if (name_or_path == "chatqa2-like") return ChatQa2Like();
  if (name_or_path == "longalign-like") return LongAlignLike();
  if (absl::EndsWith(name_or_path, ".idx")) return FromDataset(name_or_path);
  absl::StatusOr<NumberTable> table = ReadNumberTable(name_or_path);
  if (absl::IsNotFound(table.status())) {
    return absl::NotFoundError(absl::StrCat("workload \"", name_or_path, "\" is neither built in (",
                                            absl::StrJoin(BuiltInWorkloads(), ", "),
                                            ") nor a file that can be opened"));
  }
  if (!table.ok()) return table.status();
  if (table->rows[0].size() == 2) return FromQuantiles(name_or_path, *table);
  if (table->rows[0].size() == 1) return FromLengths(name_or_path, *table);
  return absl::InvalidArgumentError(
      absl::StrCat(name_or_path, " has ", table->rows[0].size(),
                   " columns; expected `quantile,tokens` or one column of lengths"));
}

}  // namespace sparsebalance::simulation
