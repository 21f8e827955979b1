#include "coordinator/simulation/simulation_page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/timeline.h"

namespace sparsebalance::simulation {
namespace {

// Ranks drawn of each plan; with more, the slowest ones.
constexpr size_t kMostRanks = 8;
constexpr int kPageWidth = 1000;
constexpr int kLabel = 104;
constexpr int kLane = 16;
constexpr int kBins = 24;

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6875; --line: #d5dbe1; --page: #ffffff;
  --idle: #eef1f4; --fwd: #2f7ed8; --bwd: #e0893a; --bar: #4a7fb5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #364352;
  --page: #161c23; --idle: #232c36; --fwd: #5a9fe8; --bwd: #e6a15c; --bar: #6f9fcf; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 1060px; margin: 24px auto; padding: 0 20px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 6px; }
h3 { font-size: 15px; margin: 18px 0 2px; }
p { margin: 4px 0; color: var(--soft); }
table { border-collapse: collapse; margin: 12px 0; width: 100%; }
th, td { padding: 5px 8px; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.idle { fill: var(--idle); } .fwd { fill: var(--fwd); } .bwd { fill: var(--bwd); }
.op { stroke: var(--page); stroke-width: 0.7; } .bar { fill: var(--bar); }
.axis { stroke: var(--line); stroke-width: 1; }
.key { display: inline-block; width: 11px; height: 11px; margin: 0 4px 0 14px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 8px 24px; }
)";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// A round step so that about `parts` of them make up the range: 1, 2 or 5 times a power of ten.
double RoundStep(double range, int parts) {
  if (!(range > 0)) return 1;
  const double raw = range / parts;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= raw) return m * power;
  }
  return 10 * power;
}

std::string FiguresTable(const SimulationResult& result) {
  std::string html =
      "<table><thead><tr><th>policy</th><th>step ms</th><th>speed-up</th><th>imbalance</th>"
      "<th>coverage</th><th>least ratio</th><th>lower bound ms</th><th>gap</th>"
      "<th>plan ms p50</th><th>p99</th></tr></thead><tbody>\n";
  for (const PolicyResult& p : result.policies) {
    absl::StrAppendFormat(
        &html,
        "<tr><td>%s</td><td>%.2f</td><td>%.3f</td><td>%.3f</td><td>%.4f</td><td>%.3f</td>"
        "<td>%.2f</td><td>%.2f %%</td><td>%.2f</td><td>%.2f</td></tr>\n",
        Escaped(p.policy), p.step_ms_mean, p.speedup, p.imbalance_mean, p.coverage_mean,
        p.coverage_ratio_min, p.lower_bound_ms_mean, 100 * p.gap_mean, p.plan_ms_p50,
        p.plan_ms_p99);
  }
  return absl::StrCat(html, "</tbody></table>\n");
}

// What a micro-batch holds, for its tooltip.
std::string Contents(const v1::MicroBatch& mb) {
  if (mb.zero_weight()) return "filler of weight zero";
  std::string text;
  for (const v1::Slice& slice : mb.slices()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "sequence ", slice.sequence_id(), ", ",
                    slice.token_end() - slice.token_begin(), " tokens, budget ",
                    slice.budget_blocks());
  }
  return text;
}

std::vector<const v1::RankPlan*> DrawnRanks(const v1::Plan& plan) {
  std::vector<const v1::RankPlan*> ranks;
  for (const v1::RankPlan& rank : plan.ranks()) ranks.push_back(&rank);
  if (ranks.size() > kMostRanks) {
    std::stable_sort(ranks.begin(), ranks.end(), [](const auto* a, const auto* b) {
      return a->predicted_ms() > b->predicted_ms();
    });
    ranks.resize(kMostRanks);
    std::sort(ranks.begin(), ranks.end(),
              [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  }
  return ranks;
}

std::string TimeAxis(double longest_ms, double scale, int y) {
  std::string svg;
  const double step = RoundStep(longest_ms, 8);
  for (int tick = 0; tick * step <= longest_ms; ++tick) {
    const double x = kLabel + tick * step * scale;
    absl::StrAppendFormat(&svg, "<line class=axis x1=%.1f y1=0 x2=%.1f y2=%d />", x, x, y);
    absl::StrAppendFormat(&svg, "<text x=%.1f y=%d text-anchor=middle>%g ms</text>\n", x, y + 13,
                          tick * step);
  }
  return svg;
}

std::string Timeline(const SimulationOptions& options, const v1::Plan& plan, double longest_ms) {
  const uint32_t stages = std::max<uint32_t>(1, options.settings.pipeline_parallel_size());
  const double share = options.profile.model().forward_fraction();
  const std::vector<const v1::RankPlan*> ranks = DrawnRanks(plan);
  const int rank_height = static_cast<int>(stages) * kLane + 6;
  const int height = static_cast<int>(ranks.size()) * rank_height;
  const double scale = longest_ms > 0 ? (kPageWidth - kLabel - 40) / longest_ms : 0;
  std::string svg =
      absl::StrFormat("<svg viewBox='0 0 %d %d' role=img aria-label='schedule of %s'>\n",
                      kPageWidth, height + 18, Escaped(plan.policy()));
  svg += TimeAxis(longest_ms, scale, height);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const v1::RankPlan& rank = *ranks[r];
    const auto lanes = planner::TimelineOf(rank, stages, share);
    for (size_t s = 0; s < lanes.size(); ++s) {
      const int y = static_cast<int>(r) * rank_height + static_cast<int>(s) * kLane;
      const std::string name = stages == 1 ? absl::StrCat("rank ", rank.rank())
                                           : absl::StrCat("rank ", rank.rank(), ", stage ", s);
      absl::StrAppendFormat(&svg, "<text x=%d y=%d text-anchor=end>%s</text>", kLabel - 6, y + 12,
                            name);
      absl::StrAppendFormat(&svg, "<rect class=idle x=%d y=%d width=%.1f height=%d />\n", kLabel,
                            y + 1, plan.predicted_step_ms() * scale, kLane - 2);
      for (const planner::Operation& op : lanes[s].operations) {
        absl::StrAppendFormat(
            &svg,
            "<rect class='op %s' x=%.2f y=%d width=%.2f height=%d><title>%s, micro-batch %d, %s: "
            "%.2f to %.2f ms; %s</title></rect>\n",
            op.backward ? "bwd" : "fwd", kLabel + op.begin_ms * scale, y + 1,
            std::max(0.3, (op.end_ms - op.begin_ms) * scale), kLane - 2, name, op.micro_batch,
            op.backward ? "backward" : "forward", op.begin_ms, op.end_ms,
            Contents(rank.micro_batches(op.micro_batch)));
      }
    }
  }
  return absl::StrCat(svg, "</svg>\n");
}

std::string Histogram(const std::string& title, const std::string& unit,
                      const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double least = values.empty() ? 0 : *low;
  const double most = values.empty() ? 1 : *high;
  const double width = most > least ? (most - least) / kBins : 1;
  std::vector<int> bins(kBins, 0);
  for (const double v : values) {
    ++bins[static_cast<size_t>(std::clamp((v - least) / width, 0.0, kBins - 1.0))];
  }
  const int tallest = std::max(1, *std::max_element(bins.begin(), bins.end()));
  constexpr int kPlot = 90;
  constexpr int kBar = 15;
  std::string svg = absl::StrFormat(
      "<div><h3>%s</h3><svg viewBox='0 0 %d %d' role=img "
      "aria-label='distribution: %s'>\n",
      Escaped(title), kBins * kBar, kPlot + 18, Escaped(title));
  for (int b = 0; b < kBins; ++b) {
    const double h = static_cast<double>(kPlot) * bins[b] / tallest;
    absl::StrAppendFormat(&svg,
                          "<rect class=bar x=%d y=%.1f width=%d height=%.1f><title>%.6g to %.6g "
                          "%s: %d sequences</title></rect>\n",
                          b * kBar, kPlot - h, kBar - 1, h, least + b * width,
                          least + (b + 1) * width, Escaped(unit), bins[b]);
  }
  absl::StrAppendFormat(&svg, "<line class=axis x1=0 y1=%d x2=%d y2=%d />", kPlot, kBins * kBar,
                        kPlot);
  absl::StrAppendFormat(&svg, "<text x=0 y=%d>%.6g</text>", kPlot + 14, least);
  absl::StrAppendFormat(&svg, "<text x=%d y=%d text-anchor=end>%.6g %s</text>", kBins * kBar,
                        kPlot + 14, most, Escaped(unit));
  return absl::StrCat(svg, "</svg></div>\n");
}

}  // namespace

std::string SimulationPage(const SimulationOptions& options, const SimulationResult& result) {
  const v1::PlanSettings& s = options.settings;
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=en>\n<head><meta charset=utf-8>\n"
      "<meta name=viewport content='width=device-width, initial-scale=1'>\n"
      "<title>SparseBalance simulation: ",
      Escaped(options.workload.name), "</title>\n<style>", kStyle, "</style></head>\n<body>\n");
  absl::StrAppend(&html, "<h1>SparseBalance simulation</h1>\n<p>", options.steps, " steps of ",
                  options.global_batch_size, " sequences on ", s.data_parallel_size(),
                  " data-parallel ranks of ", std::max<uint32_t>(1, s.pipeline_parallel_size()),
                  s.pipeline_parallel_size() > 1 ? " pipeline stages" : " stage", "; ",
                  absl::StrFormat("%.2f", static_cast<double>(result.tokens) / 1e6),
                  " million tokens.</p>\n");
  absl::StrAppend(&html, "<p>Lengths: ", Escaped(options.workload.description),
                  ".</p>\n<p>Times: ", Escaped(options.profile.source()),
                  ".</p>\n<p>Coverage: ", Escaped(options.coverage.description), ".</p>\n");
  absl::StrAppend(&html, FiguresTable(result));
  absl::StrAppend(&html, "<h2>The first step</h2>\n<p>One line for every ",
                  s.pipeline_parallel_size() > 1 ? "rank and stage" : "rank",
                  s.data_parallel_size() > kMostRanks
                      ? absl::StrCat(" of the ", kMostRanks, " slowest ranks")
                      : std::string(),
                  ", all policies on one scale."
                  "<span class=key style='background:var(--fwd)'></span>forward"
                  "<span class=key style='background:var(--bwd)'></span>backward"
                  "<span class=key style='background:var(--idle)'></span>idle</p>\n");
  double longest = 0;
  for (const PolicyResult& p : result.policies) {
    longest = std::max(longest, p.first_plan.predicted_step_ms());
  }
  for (const PolicyResult& p : result.policies) {
    absl::StrAppendFormat(&html, "<h3>%s: %.2f ms</h3>\n", Escaped(p.policy),
                          p.first_plan.predicted_step_ms());
    html += Timeline(options, p.first_plan, longest);
  }
  absl::StrAppend(&html, "<h2>Distributions</h2>\n<div class=charts>\n");
  html += Histogram("Lengths", "tokens",
                    std::vector<double>(result.lengths.begin(), result.lengths.end()));
  for (const PolicyResult& p : result.policies) {
    html += Histogram("Budgets of " + p.policy, "blocks",
                      std::vector<double>(p.budgets.begin(), p.budgets.end()));
    html += Histogram("Coverage of " + p.policy, "", p.coverages);
  }
  return absl::StrCat(html, "</div>\n</body>\n</html>\n");
}

}  // namespace sparsebalance::simulation
