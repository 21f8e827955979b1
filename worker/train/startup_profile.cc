#include "worker/train/startup_profile.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/latency_fit.h"
#include "kernels/status_macros.h"
#include "worker/train/rank_compute.h"

namespace sparsebalance {
namespace {

constexpr double kProfileSeconds = 4;

struct Shape {
  uint64_t tokens;
  uint32_t budget;
};

// Short to long, so that a small time limit still leaves a fit.
std::vector<Shape> ShapesToMeasure(const TrainOptions& options, const ProfileRange& range) {
  const uint64_t block = options.plan.block_tokens();
  const uint32_t base = options.plan.base_budget_blocks();
  std::vector<Shape> shapes;
  for (const uint64_t part : {32, 16, 8, 4, 2, 1}) {
    const uint64_t tokens = std::max<uint64_t>(1, range.longest_tokens / part);
    const auto blocks = static_cast<uint32_t>((tokens + block - 1) / block);
    std::set<uint32_t> budgets;
    for (const uint32_t budget : {base, std::max(1u, base / 2), base * 2}) {
      budgets.insert(std::min(budget, blocks));
    }
    if (range.wide) budgets.insert({1, std::max(1u, blocks / 2), blocks});
    for (const uint32_t budget : budgets) shapes.push_back({tokens, budget});
  }
  return shapes;
}

}  // namespace

absl::StatusOr<v1::LatencyProfile> MeasureProfile(const TrainOptions& options,
                                                  const ProfileRange& range) {
  SB_ASSIGN_OR_RETURN(const std::unique_ptr<RankCompute> compute,
                      RankCompute::Create(options, /*dataset=*/nullptr, /*device=*/0));
  const std::vector<Shape> shapes = ShapesToMeasure(options, range);
  // The first pass allocates memory and compiles products.
  SB_RETURN_IF_ERROR(
      compute->Measure(shapes[shapes.size() / 2].tokens, shapes[shapes.size() / 2].budget)
          .status());
  v1::LatencyProfile profile;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (const Shape& shape : shapes) {
    if (profile.points_size() >= 8 && elapsed() > range.seconds) break;
    RankCompute::Timing best;
    // The first run of a shape also pays for its memory; the least of the others is the time
    // without the machine's noise.
    const int repetitions = shape.tokens < 2048 ? 3 : 2;
    for (int i = 0; i < repetitions; ++i) {
      SB_ASSIGN_OR_RETURN(const RankCompute::Timing timing,
                          compute->Measure(shape.tokens, shape.budget));
      if (i == 0 || timing.forward_ms + timing.backward_ms < best.forward_ms + best.backward_ms) {
        best = timing;
      }
    }
    v1::ProfilePoint& point = *profile.add_points();
    point.set_tokens(shape.tokens);
    point.set_budget_blocks(shape.budget);
    point.set_forward_ms(best.forward_ms);
    point.set_backward_ms(best.backward_ms);
  }
  const std::vector<v1::ProfilePoint> points(profile.points().begin(), profile.points().end());
  SB_ASSIGN_OR_RETURN(const planner::LatencyFit fit,
                      planner::FitLatency(points, options.plan.block_tokens()));
  *profile.mutable_model() = fit.model;
  profile.set_mean_relative_error(fit.mean_relative_error);
  profile.set_source(absl::StrFormat("measured, %d points", profile.points_size()));
  return profile;
}

absl::Status EnsureProfile(NodeSession& session, const TrainOptions& options,
                           const data::IndexedDataset& dataset,
                           const std::function<void(const std::string&)>& log) {
  const absl::StatusOr<v1::LatencyProfile> known = session.GetProfile();
  if (known.ok()) {
    log(absl::StrFormat("using the coordinator's latency profile (%s, mean error %.1f %%)",
                        known->source(), known->mean_relative_error() * 100));
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(known.status())) {
    log(absl::StrCat("cannot ask for a latency profile: ", known.status().message()));
    return absl::OkStatus();
  }
  log("measuring a latency profile of this machine, a few seconds");
  int32_t longest = 1;
  for (const int32_t length : dataset.lengths()) longest = std::max(longest, length);
  SB_ASSIGN_OR_RETURN(v1::LatencyProfile profile,
                      MeasureProfile(options, {.longest_tokens = static_cast<uint64_t>(longest),
                                               .seconds = kProfileSeconds}));
  log(absl::StrFormat("latency profile: %d points, mean error of the fit %.1f %%",
                      profile.points_size(), profile.mean_relative_error() * 100));
  if (absl::Status status = session.PutProfile(std::move(profile)); !status.ok()) {
    log(absl::StrCat("the coordinator did not take the profile: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
