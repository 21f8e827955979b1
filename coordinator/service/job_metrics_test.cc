// The metrics of jobs: that they say what happened, and that their number is bounded.
#include "coordinator/service/job_metrics.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/service_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using prometheus::MetricType;
using testing_support::Coordinator;
using testing_support::ExchangePending;
using testing_support::JoinPending;
using testing_support::MakeBatch;
using testing_support::MakeSpec;
using testing_support::MakeTelemetry;

// Values by name, or name{reason}; a histogram's number and sum as name_count and name_sum.
std::map<std::string, double> Values(const std::vector<JobFigures>& jobs) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : JobMetricFamilies(jobs)) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name.substr(std::string("sparsebalance_coordinator_").size());
      for (const prometheus::ClientMetric::Label& label : metric.label) {
        if (label.name == "reason") absl::StrAppend(&name, "{", label.value, "}");
      }
      switch (family.type) {
        case MetricType::Counter:
          values[name] = metric.counter.value;
          break;
        case MetricType::Histogram:
          values[name + "_count"] = static_cast<double>(metric.histogram.sample_count);
          values[name + "_sum"] = metric.histogram.sample_sum;
          break;
        default:
          values[name] = metric.gauge.value;
      }
    }
  }
  return values;
}

class JobMetricsTest : public testing::Test {
 protected:
  JobMetricsTest() { coordinator_.FormPair("job"); }

  v1::Plan PlanStep(uint64_t step) {
    const ExchangePending a = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(step));
    const ExchangePending b = coordinator_.Ask(Coordinator::Key("job", "b"), MakeBatch(step));
    coordinator_.executor.RunAll();
    EXPECT_TRUE(a.answered() && a.get().ok());
    return a->plan();
  }
  void Report(const v1::RankTelemetry& of_a, const v1::RankTelemetry& of_b) {
    coordinator_.Report(Coordinator::Key("job", "a"), {of_a});
    coordinator_.Report(Coordinator::Key("job", "b"), {of_b});
  }
  std::map<std::string, double> Read() { return Values(coordinator_.registry->Figures()); }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
};

TEST_F(JobMetricsTest, FiguresOfStepsAreNotThereBeforeThereIsAStep) {
  const std::map<std::string, double> values = Read();
  EXPECT_EQ(values.at("job_ranks"), 2);
  EXPECT_EQ(values.at("job_generation"), 1);
  EXPECT_EQ(values.at("job_steps_total"), 0);
  for (const char* absent : {"job_step_imbalance_ratio", "job_loss_nats", "job_coverage_mean_ratio",
                             "job_fallback_steps_total{late}"}) {
    EXPECT_FALSE(values.contains(absent)) << absent;
  }
}

TEST_F(JobMetricsTest, APlannedStepCountsWhatItTookAndWhatItSaved) {
  const v1::Plan plan = PlanStep(0);
  v1::RankTelemetry slow = MakeTelemetry(1, 0, 90);
  slow.set_guard_raises(1);
  Report(MakeTelemetry(0, 0, 30), slow);
  const std::map<std::string, double> values = Read();
  EXPECT_EQ(values.at("job_steps_total"), 1);
  EXPECT_EQ(values.at("job_tokens_total"), 1024);
  EXPECT_EQ(values.at("job_sequences_total"), 8);
  EXPECT_DOUBLE_EQ(values.at("job_step_imbalance_ratio"), 1.5);
  EXPECT_DOUBLE_EQ(values.at("job_straggler_seconds_total"), 0.06);
  EXPECT_DOUBLE_EQ(values.at("job_step_seconds_sum"), 0.1);
  EXPECT_EQ(values.at("job_rank_compute_ratio_count"), 2);
  EXPECT_DOUBLE_EQ(values.at("job_rank_compute_ratio_sum"), 2);
  EXPECT_EQ(values.at("job_guard_raises_total"), 1);
  EXPECT_EQ(values.at("job_bubble_seconds_total"), 0);
  EXPECT_DOUBLE_EQ(values.at("job_saved_seconds_total"),
                   0.1 * (plan.length_policy_step_ms() / plan.predicted_step_ms() - 1));
  EXPECT_DOUBLE_EQ(values.at("job_predicted_over_measured_ratio"), plan.predicted_step_ms() / 100);
  EXPECT_DOUBLE_EQ(values.at("job_coverage_mean_ratio"), plan.mean_coverage());
  EXPECT_DOUBLE_EQ(values.at("job_coverage_min_ratio"), plan.min_coverage_ratio());
  EXPECT_EQ(values.at("job_budget_blocks_count"), 8);
  for (const char* reason : {"coordinator_away", "late", "unfit", "ranks_differ"}) {
    EXPECT_EQ(values.at(absl::StrCat("job_fallback_steps_total{", reason, "}")), 0);
  }
}

TEST_F(JobMetricsTest, AFallbackCountsUnderTheFirstReasonOfItsRanks) {
  struct Case {
    v1::NoPlanReason of_a, of_b;
    const char* counted;
  };
  const Case cases[] = {
      {v1::NO_PLAN_REASON_RANKS_DIFFER, v1::NO_PLAN_REASON_LATE, "late"},
      {v1::NO_PLAN_REASON_COORDINATOR_AWAY, v1::NO_PLAN_REASON_LATE, "coordinator_away"},
      {v1::NO_PLAN_REASON_UNFIT, v1::NO_PLAN_REASON_RANKS_DIFFER, "unfit"},
      {v1::NO_PLAN_REASON_RANKS_DIFFER, v1::NO_PLAN_REASON_RANKS_DIFFER, "ranks_differ"},
      {v1::NO_PLAN_REASON_NONE, v1::NO_PLAN_REASON_NONE, "unknown"},
  };
  uint64_t step = 0;
  for (const Case& c : cases) {
    v1::RankTelemetry a = MakeTelemetry(0, step);
    v1::RankTelemetry b = MakeTelemetry(1, step);
    for (v1::RankTelemetry* report : {&a, &b}) report->set_used_fallback(true);
    a.set_no_plan_reason(c.of_a);
    b.set_no_plan_reason(c.of_b);
    Report(a, b);
    ++step;
    EXPECT_EQ(Read().at(absl::StrCat("job_fallback_steps_total{", c.counted, "}")), 1) << c.counted;
  }
  EXPECT_EQ(Read().at("job_saved_seconds_total"), 0);
  EXPECT_EQ(Read().at("job_budget_blocks_count"), 0);
}

TEST_F(JobMetricsTest, ABarrierSaysHowLongTheFirstNodeHasWaitedForTheOthers) {
  const ExchangePending a = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  coordinator_.scheduler.Advance(absl::Seconds(3));
  EXPECT_EQ(Read().at("job_barrier_oldest_wait_seconds"), 3);
  const ExchangePending b = coordinator_.Ask(Coordinator::Key("job", "b"), MakeBatch(0));
  EXPECT_EQ(Read().at("job_barrier_oldest_wait_seconds"), 0) << "the step waits for nobody now";
}

TEST_F(JobMetricsTest, AFinishedJobHasNoSeries) {
  PlanStep(0);
  Report(MakeTelemetry(0, 0), MakeTelemetry(1, 0));
  for (const char* node : {"a", "b"}) {
    v1::LeaveJobRequest leave;
    *leave.mutable_node() = Coordinator::Key("job", node);
    leave.set_job_finished(true);
    ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  }
  EXPECT_FALSE(Read().contains("job_ranks"));
}

size_t SeriesOf(const std::string& page) {
  size_t series = 0;
  for (size_t at = 0; at < page.size(); at = page.find('\n', at) + 1) series += page[at] != '#';
  return series;
}

TEST(JobMetricsCardinalityTest, AThousandJobsOfAThousandRanksComeAndGo) {
  constexpr int kJobs = 1000;
  constexpr int kAtOnce = 50;
  constexpr uint32_t kRanks = 1000;
  MemoryStore store;
  Coordinator coordinator(&store);
  CoordinatorMetrics metrics("test");
  const auto scrape = [&] {
    CoordinatorMetrics::Snapshot snapshot;
    snapshot.jobs = coordinator.registry->Figures();
    return SeriesOf(metrics.Scrape(snapshot));
  };
  const size_t before = scrape();
  std::vector<uint32_t> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0u);
  for (int first = 0; first < kJobs; first += kAtOnce) {
    for (int j = first; j < first + kAtOnce; ++j) {
      const std::string name = absl::StrCat("job-", j);
      v1::JobSpec spec = MakeSpec(name, kRanks);
      spec.set_global_batch_size(kRanks);
      spec.mutable_plan()->set_policy("length");  // planned in no time
      coordinator.Register(spec);
      const JoinPending joined = coordinator.Join(name, "node", ranks);
      ASSERT_TRUE(joined.answered() && joined.get().ok());
      // One step by a plan, one without: all series that a job can have.
      const v1::NodeKey node = Coordinator::Key(name, "node");
      v1::GlobalBatch batch = MakeBatch(0, kRanks);
      for (v1::BatchSequence& sequence : *batch.mutable_sequences()) {
        sequence.set_tokens(200 + 100 * (sequence.id() % 30));
      }
      batch.set_digest(BatchDigest(batch));
      const ExchangePending planned = coordinator.Ask(node, batch);
      coordinator.executor.RunAll();
      ASSERT_TRUE(planned.answered() && planned.get().ok()) << planned.status();
      std::vector<v1::RankTelemetry> reports;
      for (const uint64_t step : {0, 1}) {
        for (const uint32_t rank : ranks) {
          reports.push_back(MakeTelemetry(rank, step, 50 + rank % 7));
          reports.back().set_used_fallback(step == 1);
        }
      }
      coordinator.Report(node, reports);
    }
    const size_t live = scrape();
    EXPECT_LT(static_cast<double>(live - before), 70.0 * kAtOnce);
    EXPECT_GT(static_cast<double>(live - before), 40.0 * kAtOnce) << "the test shows nothing";
    for (int j = first; j < first + kAtOnce; ++j) {
      v1::LeaveJobRequest leave;
      *leave.mutable_node() = Coordinator::Key(absl::StrCat("job-", j), "node");
      leave.set_job_finished(true);
      ASSERT_TRUE(coordinator.registry->LeaveJob(leave).ok());
      v1::RemoveJobRequest remove;
      remove.mutable_job()->set_name(absl::StrCat("job-", j));
      ASSERT_TRUE(coordinator.registry->RemoveJob(remove).ok());
    }
    ASSERT_EQ(scrape(), before);
  }
}

}  // namespace
}  // namespace sparsebalance
