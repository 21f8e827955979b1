#include "coordinator/service/job_metrics.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/service/job_spec.h"

namespace sparsebalance {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Nothing: the job has no such figure yet.
using Figure = std::function<std::optional<double>(const v1::JobStatus&)>;

struct JobFamily {
  const char* name;
  MetricType type;
  const char* help;
  Figure figure;
};

Figure Always(double (*read)(const v1::JobStatus&)) {
  return [read](const v1::JobStatus& job) { return std::optional<double>(read(job)); };
}

Figure OfLastStep(double (*read)(const v1::StepStatus&)) {
  return [read](const v1::JobStatus& job) -> std::optional<double> {
    if (job.recent_steps().empty()) return std::nullopt;
    return read(*job.recent_steps().rbegin());
  };
}

// Figures that only a step with a plan has.
Figure OfLastPlannedStep(double (*read)(const v1::StepStatus&)) {
  return [read](const v1::JobStatus& job) -> std::optional<double> {
    for (auto step = job.recent_steps().rbegin(); step != job.recent_steps().rend(); ++step) {
      if (!step->used_fallback() && step->predicted_step_ms() > 0) return read(*step);
    }
    return std::nullopt;
  };
}

const std::vector<JobFamily>& Families() {
  using S = v1::StepStatus;
  using J = v1::JobStatus;
  static const auto* const families = new std::vector<JobFamily>{
      {"job_ranks", MetricType::Gauge, "Ranks that the job has.", Always([](const J& job) {
         return static_cast<double>(RankLayout(job.spec().parallelism()).count());
       })},
      {"job_ranks_missing", MetricType::Gauge, "Ranks whose node is not in.",
       Always([](const J& job) { return static_cast<double>(job.missing_ranks_size()); })},
      {"job_steps_total", MetricType::Counter, "Steps that all ranks have reported.",
       Always([](const J& job) { return static_cast<double>(job.steps_reported()); })},
      {"job_fallback_steps_total", MetricType::Counter,
       "Steps trained by the workers' own plan because they had none in time.",
       Always([](const J& job) { return static_cast<double>(job.fallback_steps()); })},
      {"job_sequences_consumed_twice", MetricType::Gauge,
       "Sequences consumed more than once in an epoch; 0 in a sound run.",
       Always([](const J& job) { return static_cast<double>(job.sequences_consumed_twice()); })},
      {"job_remembered_sequences", MetricType::Gauge, "Sequences in coverage memory.",
       Always([](const J& job) { return static_cast<double>(job.remembered_sequences()); })},
      {"job_largest_rank_time_factor", MetricType::Gauge,
       "Time over prediction of the slowest rank; 1 is the model itself.",
       [](const J& job) -> std::optional<double> {
         if (job.ranks().empty()) return std::nullopt;
         double largest = 0;
         for (const v1::RankStatus& rank : job.ranks()) {
           largest = std::max(largest, rank.time_factor());
         }
         return largest;
       }},
      {"job_step_seconds", MetricType::Gauge, "Wall time of the last finished step.",
       OfLastStep([](const S& step) { return step.step_ms() / 1e3; })},
      {"job_step_imbalance", MetricType::Gauge,
       "Largest over mean compute time of ranks in the last finished step.",
       OfLastStep([](const S& step) { return step.rank_imbalance(); })},
      {"job_length_imbalance", MetricType::Gauge, "The same as predicted for balancing by length.",
       OfLastPlannedStep([](const S& step) { return step.length_imbalance(); })},
      {"job_plan_wait_seconds", MetricType::Gauge,
       "Longest time that a rank waited for the plan of the last finished step.",
       OfLastStep([](const S& step) { return step.plan_wait_ms() / 1e3; })},
      {"job_predicted_over_measured", MetricType::Gauge,
       "Predicted over measured time of the last finished step that had a plan.",
       OfLastPlannedStep([](const S& step) {
         return step.step_ms() > 0 ? step.predicted_step_ms() / step.step_ms() : 0.0;
       })},
      {"job_mean_coverage", MetricType::Gauge,
       "Mean coverage of the plan of the last finished step that had one.",
       OfLastPlannedStep([](const S& step) { return step.mean_coverage(); })},
      {"job_optimality_gap", MetricType::Gauge,
       "Predicted time over its lower bound, minus 1, of the last finished step with a plan.",
       OfLastPlannedStep([](const S& step) { return step.optimality_gap(); })},
      {"job_loss", MetricType::Gauge, "Mean loss of the last finished step, nats a token.",
       OfLastStep([](const S& step) { return step.loss(); })},
  };
  return *families;
}

MetricFamily Empty(const std::string& name, MetricType type, const std::string& help) {
  MetricFamily family;
  family.name = "sparsebalance_coordinator_" + name;
  family.help = help;
  family.type = type;
  return family;
}

MetricFamily JobsByState(const std::vector<v1::JobStatus>& jobs) {
  MetricFamily family = Empty("jobs", MetricType::Gauge, "Jobs by state.");
  for (const v1::JobState state : {v1::JOB_STATE_REGISTERED, v1::JOB_STATE_JOINING,
                                   v1::JOB_STATE_TRAINING, v1::JOB_STATE_FINISHED}) {
    ClientMetric metric;
    metric.label = {{"state", JobStateName(state)}};
    metric.gauge.value = static_cast<double>(std::count_if(
        jobs.begin(), jobs.end(), [&](const v1::JobStatus& job) { return job.state() == state; }));
    family.metric.push_back(std::move(metric));
  }
  return family;
}

MetricFamily Members(const std::vector<v1::JobStatus>& jobs) {
  MetricFamily family = Empty("members", MetricType::Gauge, "Nodes that are in a job.");
  ClientMetric metric;
  for (const v1::JobStatus& job : jobs) {
    std::vector<std::string> nodes;
    nodes.reserve(static_cast<size_t>(job.ranks_size()));
    for (const v1::RankStatus& rank : job.ranks()) nodes.push_back(rank.node_id());
    std::sort(nodes.begin(), nodes.end());
    metric.gauge.value +=
        static_cast<double>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
  }
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace

const char* JobStateName(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_REGISTERED:
      return "registered";
    case v1::JOB_STATE_JOINING:
      return "joining";
    case v1::JOB_STATE_TRAINING:
      return "training";
    case v1::JOB_STATE_FINISHED:
      return "finished";
    default:
      return "unknown";
  }
}

std::vector<MetricFamily> JobMetricFamilies(const std::vector<v1::JobStatus>& jobs) {
  std::vector<MetricFamily> families = {JobsByState(jobs), Members(jobs)};
  for (const JobFamily& described : Families()) {
    MetricFamily family = Empty(described.name, described.type, described.help);
    for (const v1::JobStatus& job : jobs) {
      if (job.state() == v1::JOB_STATE_FINISHED) continue;
      const std::optional<double> value = described.figure(job);
      if (!value) continue;
      ClientMetric metric;
      metric.label = {{"namespace", job.spec().job().namespace_()},
                      {"job", job.spec().job().name()}};
      (described.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = *value;
      family.metric.push_back(std::move(metric));
    }
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return families;
}

}  // namespace sparsebalance
