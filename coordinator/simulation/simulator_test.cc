#include "coordinator/simulation/simulator.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/planner/schedule.h"
#include "coordinator/planner/timeline.h"
#include "coordinator/simulation/modelled_profile.h"
#include "coordinator/simulation/simulation_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::simulation {
namespace {

using testing::HasSubstr;

SimulationOptions Options(uint32_t ranks, uint32_t stages) {
  SimulationOptions options;
  options.workload = *LoadWorkload("chatqa2-like");
  options.coverage = *LoadCoverage("family");
  options.profile = ModelledProfile(stages, 256);
  v1::PlanSettings& s = options.settings;
  s.set_data_parallel_size(ranks);
  s.set_pipeline_parallel_size(stages);
  s.set_block_tokens(256);
  s.set_base_budget_blocks(32);
  s.set_max_tokens_per_micro_batch(65536);
  s.set_micro_batch_size(2);
  s.set_coverage_guard(0.1);
  options.steps = 4;
  options.policies = {"none", "length", "sparsebalance"};
  return options;
}

TEST(ModelledProfile, SaysThatItIsModelledAndIsAValidModelForEveryDepth) {
  for (const uint32_t stages : {1U, 2U, 4U, 8U}) {
    const v1::LatencyProfile profile = ModelledProfile(stages, 256);
    EXPECT_THAT(profile.source(), HasSubstr("modelled, not measured"));
    const planner::LatencyPredictor predictor(profile.model(), 256);
    // Dense attention costs more than sparse, and a stage of P is a P-th of the model.
    EXPECT_GT(predictor.SequenceNs(32768, 128, 128), predictor.SequenceNs(32768, 128, 32));
    const planner::LatencyPredictor whole(ModelledProfile(1, 256).model(), 256);
    EXPECT_NEAR(static_cast<double>(whole.SequenceNs(32768, 128, 32)),
                static_cast<double>(stages * predictor.SequenceNs(32768, 128, 32)), 1e4);
  }
}

TEST(Simulate, PoliciesMeetTheSameBatchesAndTheFirstIsTheMeasure) {
  const auto result = Simulate(Options(2, 4));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->policies.size(), 3U);
  const PolicyResult& none = result->policies[0];
  const PolicyResult& length = result->policies[1];
  const PolicyResult& ours = result->policies[2];
  EXPECT_EQ(none.speedup, 1.0);
  EXPECT_EQ(none.coverage_mean, length.coverage_mean) << "fixed budgets on the same batches";
  EXPECT_GT(ours.speedup, length.speedup);
  EXPECT_GE(ours.coverage_mean, none.coverage_mean);
  EXPECT_GE(ours.coverage_ratio_min, 0.9 - 1e-6);
  for (const PolicyResult& p : result->policies) {
    EXPECT_GE(p.step_ms_mean, p.lower_bound_ms_mean) << p.policy;
    EXPECT_GE(p.imbalance_mean, 1.0) << p.policy;
    EXPECT_EQ(p.cap_violations + p.guard_violations, 0U) << p.policy;
    EXPECT_GT(p.plan_ms_p99, 0) << p.policy;
    EXPECT_EQ(p.budgets.size(), 64U) << p.policy;
  }
}

TEST(Simulate, TheSeedDecidesEverythingButTheTimeToPlan) {
  const auto one = Simulate(Options(2, 1));
  const auto two = Simulate(Options(2, 1));
  SimulationOptions other = Options(2, 1);
  other.seed = 2;
  const auto three = Simulate(other);
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  EXPECT_EQ(one->policies[2].step_ms_mean, two->policies[2].step_ms_mean);
  EXPECT_EQ(one->policies[2].budgets, two->policies[2].budgets);
  EXPECT_NE(one->lengths, three->lengths);
}

TEST(Simulate, AnErrorNamesStepAndPolicy) {
  SimulationOptions options = Options(2, 1);
  options.settings.set_max_tokens_per_micro_batch(9000);
  const auto result = Simulate(options);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("step 0, policy none: sequence"));
  options.steps = 0;
  EXPECT_EQ(Simulate(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Timeline, EndsWhenTheScheduleDoesAndNoStageDoesTwoThingsAtOnce) {
  const auto result = Simulate(Options(2, 4));
  ASSERT_TRUE(result.ok()) << result.status();
  for (const PolicyResult& p : result->policies) {
    for (const v1::RankPlan& rank : p.first_plan.ranks()) {
      const auto lanes = planner::TimelineOf(rank, 4, 1.0 / 3.0);
      ASSERT_EQ(lanes.size(), 4U);
      double last = 0;
      for (const planner::StageTimeline& lane : lanes) {
        EXPECT_EQ(lane.operations.size(), 2U * static_cast<size_t>(rank.micro_batches_size()));
        double clock = 0;
        for (const planner::Operation& op : lane.operations) {
          EXPECT_GE(op.begin_ms, clock - 1e-9);
          clock = op.end_ms;
        }
        last = std::max(last, clock);
      }
      EXPECT_NEAR(last, rank.predicted_ms(), 1e-3);
    }
  }
}

// Runs the page in Chromium with a script that looks for what a reader could not read: text that
// sticks out of its picture or lies outside the window. Returns the script's findings.
std::string ReadInBrowser(const std::string& html) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / absl::StrCat("sb_page_", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string page = folder / "page.html";
  constexpr char kScript[] = R"(<script>
    const out = [];
    for (const text of document.querySelectorAll('svg text')) {
      const a = text.getBoundingClientRect(), b = text.ownerSVGElement.getBoundingClientRect();
      if (a.left < b.left - 1 || a.right > b.right + 1 || a.bottom > b.bottom + 1)
        out.push('cut: ' + text.textContent);
    }
    if (document.documentElement.scrollWidth > innerWidth) out.push('wider than the window');
    out.push('operations ' + document.querySelectorAll('rect.op').length);
    out.push('bars ' + [...document.querySelectorAll('rect.bar')]
      .filter(r => r.getBoundingClientRect().height > 0).length);
    document.title = 'FOUND ' + out.join('; ') + ' END';
    </script>)";
  std::ofstream(page) << html << kScript;
  const std::string command = absl::StrCat(
      "timeout 90 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--window-size=1100,900 --user-data-dir=",
      (folder / "profile").string(), " --dump-dom file://", page, " 2>/dev/null");
  std::string dom;
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c)
  if (pipe != nullptr) {
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) dom.append(buffer, n);
    pclose(pipe);
  }
  std::filesystem::remove_all(folder);
  const size_t begin = dom.find("FOUND ");
  return begin == std::string::npos ? "no answer: " + dom.substr(0, 200)
                                    : dom.substr(begin, dom.find(" END", begin) - begin);
}

TEST(SimulationPage, IsReadableInARealBrowser) {
  // NOLINTNEXTLINE(cert-env33-c, concurrency-mt-unsafe)
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no chromium here; ./run setup installs it";
  }
  for (const auto& [ranks, stages] : {std::pair{2U, 4U}, {16U, 1U}}) {
    const SimulationOptions options = Options(ranks, stages);
    const auto result = Simulate(options);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::string html = SimulationPage(options, *result);
    EXPECT_THAT(html, testing::Not(HasSubstr("<script")));
    EXPECT_THAT(html, testing::Not(testing::ContainsRegex("src=|https?://")));
    size_t operations = 0;
    for (const PolicyResult& p : result->policies) {
      for (const v1::RankPlan& rank : p.first_plan.ranks()) {
        operations += 2U * stages * static_cast<size_t>(rank.micro_batches_size());
      }
    }
    const std::string found = ReadInBrowser(html);
    EXPECT_THAT(found, testing::Not(HasSubstr("cut: ")));
    EXPECT_THAT(found, testing::Not(HasSubstr("wider")));
    EXPECT_THAT(found, testing::ContainsRegex("bars [1-9]"));
    // With many ranks the slowest are drawn.
    if (ranks <= 8) {
      EXPECT_THAT(found, HasSubstr(absl::StrCat("operations ", operations, ";")));
    }
  }
}

}  // namespace
}  // namespace sparsebalance::simulation
