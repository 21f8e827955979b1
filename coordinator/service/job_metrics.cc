#include "coordinator/service/job_metrics.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/planner/no_plan_reason.h"

namespace sparsebalance {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Histogram = ClientMetric::Histogram;

// Nothing: the job has no such figure yet.
using Number = std::optional<double>;

struct NumberFamily {
  const char* name;
  MetricType type;
  const char* help;
  Number (*read)(const JobFigures&);
};

struct HistogramFamily {
  const char* name;
  const char* help;
  Histogram JobMeter::Reading::*histogram;
};

Number OfLast(const JobFigures& job, double (*read)(const v1::StepStatus&)) {
  return job.last_step ? Number(read(*job.last_step)) : std::nullopt;
}
Number OfPlanned(const JobFigures& job, double (*read)(const v1::StepStatus&)) {
  return job.last_planned ? Number(read(*job.last_planned)) : std::nullopt;
}

using F = JobFigures;
using S = v1::StepStatus;

constexpr NumberFamily kNumbers[] = {
    {"ranks", MetricType::Gauge, "Ranks that the job has.",
     [](const F& job) { return Number(job.ranks); }},
    {"ranks_missing", MetricType::Gauge, "Ranks whose node is not in.",
     [](const F& job) { return Number(job.ranks_missing); }},
    {"barrier_oldest_wait_seconds", MetricType::Gauge,
     "How long the node that has waited longest for the others' call has waited.",
     [](const F& job) { return Number(absl::ToDoubleSeconds(job.barrier_oldest_wait)); }},
    {"generation", MetricType::Gauge, "Memberships formed so far.",
     [](const F& job) { return Number(job.generation); }},
    {"next_step", MetricType::Gauge, "Highest step that a plan was asked for, plus 1.",
     [](const F& job) { return Number(job.next_step); }},
    {"steps_total", MetricType::Counter, "Steps that all ranks have reported.",
     [](const F& job) { return Number(job.steps_reported); }},
    {"tokens_total", MetricType::Counter, "Tokens trained in reported steps.",
     [](const F& job) { return Number(job.meter.tokens); }},
    {"sequences_total", MetricType::Counter, "Sequences trained in reported steps.",
     [](const F& job) { return Number(job.meter.sequences); }},
    {"step_imbalance_ratio", MetricType::Gauge,
     "Largest over mean compute time of ranks, measured in the last finished step.",
     [](const F& job) { return OfLast(job, [](const S& s) { return s.rank_imbalance(); }); }},
    {"length_imbalance_ratio", MetricType::Gauge,
     "The same as predicted for the same batch balanced by length.",
     [](const F& job) { return OfPlanned(job, [](const S& s) { return s.length_imbalance(); }); }},
    {"rank_time_factor_max_ratio", MetricType::Gauge,
     "Measured over predicted time of the slowest rank, learned; 1 is the model itself.",
     [](const F& job) { return Number(job.max_time_factor); }},
    {"slow_ranks", MetricType::Gauge, "Ranks whose time factor is above 1.25.",
     [](const F& job) { return Number(job.slow_ranks); }},
    {"straggler_seconds_total", MetricType::Counter,
     "Rank-seconds spent waiting for the slowest rank of a step.",
     [](const F& job) { return Number(job.meter.straggler_seconds); }},
    {"bubble_seconds_total", MetricType::Counter,
     "Rank-seconds of pipeline bubble: the plan's share of the step as measured.",
     [](const F& job) { return Number(job.meter.bubble_seconds); }},
    {"saved_seconds_total", MetricType::Counter,
     "Seconds of steps saved against balancing by length: the model's ratio of both, times the "
     "step as measured.",
     [](const F& job) { return Number(job.meter.saved_seconds); }},
    {"predicted_over_measured_ratio", MetricType::Gauge,
     "Predicted over measured time of the last finished step that had a plan.",
     [](const F& job) {
       return OfPlanned(job, [](const S& s) {
         return s.step_ms() > 0 ? s.predicted_step_ms() / s.step_ms() : 0.0;
       });
     }},
    {"optimality_gap_ratio", MetricType::Gauge,
     "Predicted time over its lower bound, less 1, of the last finished step with a plan.",
     [](const F& job) { return OfPlanned(job, [](const S& s) { return s.optimality_gap(); }); }},
    {"plan_wait_seconds", MetricType::Gauge,
     "Longest exposed wait of a rank for the plan of the last finished step.",
     [](const F& job) { return OfLast(job, [](const S& s) { return s.plan_wait_ms() / 1e3; }); }},
    {"coverage_mean_ratio", MetricType::Gauge,
     "Mean coverage of the plan of the last finished step that had one.",
     [](const F& job) { return OfPlanned(job, [](const S& s) { return s.mean_coverage(); }); }},
    {"coverage_min_ratio", MetricType::Gauge,
     "Least coverage of a sequence over its coverage at the base budget, same step.",
     [](const F& job) {
       return OfPlanned(job, [](const S& s) { return s.min_coverage_ratio(); });
     }},
    {"guard_raises_total", MetricType::Counter,
     "Sequences that workers gave more than the planned budget, by the coverage guard.",
     [](const F& job) { return Number(job.meter.guard_raises); }},
    {"loss_nats", MetricType::Gauge, "Mean loss of the last finished step, nats a token.",
     [](const F& job) { return OfLast(job, [](const S& s) { return s.loss(); }); }},
    {"sequences_consumed_twice", MetricType::Gauge,
     "Sequences consumed more than once in an epoch; 0 in a sound run.",
     [](const F& job) { return Number(job.sequences_consumed_twice); }},
    {"remembered_sequences", MetricType::Gauge, "Sequences in coverage memory.",
     [](const F& job) { return Number(job.remembered_sequences); }},
    {"state_bytes", MetricType::Gauge, "Remembered about the job, estimated.",
     [](const F& job) { return Number(job.state_bytes); }},
};

constexpr HistogramFamily kHistograms[] = {
    {"step_seconds", "Wall time of a step.", &JobMeter::Reading::step_seconds},
    {"rank_compute_ratio", "Compute time of each rank over the mean of its step.",
     &JobMeter::Reading::rank_compute_ratio},
    {"budget_blocks", "Budget of each sequence of each planned step, blocks a query.",
     &JobMeter::Reading::budget_blocks},
};

MetricFamily Empty(const std::string& name, MetricType type, const std::string& help) {
  MetricFamily family;
  family.name = "sparsebalance_coordinator_" + name;
  family.help = help;
  family.type = type;
  return family;
}

ClientMetric& Add(MetricFamily& family, const JobFigures& job) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = {{"namespace", job.id.ns}, {"job", job.id.name}};
  return metric;
}

MetricFamily JobsByState(const std::vector<JobFigures>& jobs) {
  MetricFamily family = Empty("jobs", MetricType::Gauge, "Jobs by state.");
  for (const v1::JobState state : {v1::JOB_STATE_REGISTERED, v1::JOB_STATE_JOINING,
                                   v1::JOB_STATE_TRAINING, v1::JOB_STATE_FINISHED}) {
    ClientMetric metric;
    metric.label = {{"state", JobStateName(state)}};
    metric.gauge.value = static_cast<double>(std::count_if(
        jobs.begin(), jobs.end(), [&](const JobFigures& job) { return job.state == state; }));
    family.metric.push_back(std::move(metric));
  }
  return family;
}

MetricFamily NodesOf(const std::vector<JobFigures>& jobs) {
  MetricFamily family = Empty("members", MetricType::Gauge, "Nodes that are in a job.");
  double& nodes = family.metric.emplace_back().gauge.value;
  for (const JobFigures& job : jobs) nodes += static_cast<double>(job.nodes);
  return family;
}

MetricFamily Info(const std::vector<JobFigures>& live) {
  MetricFamily family =
      Empty("job_info", MetricType::Gauge,
            "Always 1; labels hold the policy and where the latency model is of.");
  for (const JobFigures& job : live) {
    ClientMetric& metric = Add(family, job);
    metric.label.push_back({"policy", job.policy});
    metric.label.push_back({"latency_source", job.latency_source});
    metric.gauge.value = 1;
  }
  return family;
}

// All reasons have a series from the job's first finished step on, so that rates see the first time
// of each too. "unknown" is for older workers and has one where there are some.
MetricFamily FallbackSteps(const std::vector<JobFigures>& live) {
  MetricFamily family =
      Empty("job_fallback_steps_total", MetricType::Counter,
            "Steps trained by the workers' own plan, by why they had none of the coordinator.");
  for (const JobFigures& job : live) {
    if (!job.last_step) continue;
    for (size_t i = 0; i < JobMeter::kReasons; ++i) {
      if (i == v1::NO_PLAN_REASON_NONE && job.meter.fallback_steps[i] == 0) continue;
      ClientMetric& metric = Add(family, job);
      metric.label.push_back(
          {"reason", planner::NoPlanReasonName(static_cast<v1::NoPlanReason>(i))});
      metric.counter.value = job.meter.fallback_steps[i];
    }
  }
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

std::vector<MetricFamily> JobMetricFamilies(const std::vector<JobFigures>& jobs) {
  std::vector<MetricFamily> families = {JobsByState(jobs), NodesOf(jobs)};
  std::vector<JobFigures> live;
  for (const JobFigures& job : jobs) {
    if (job.state != v1::JOB_STATE_FINISHED) live.push_back(job);
  }
  if (live.empty()) return families;
  families.push_back(Info(live));
  families.push_back(FallbackSteps(live));
  for (const NumberFamily& described : kNumbers) {
    MetricFamily family =
        Empty(std::string("job_") + described.name, described.type, described.help);
    for (const JobFigures& job : live) {
      const Number value = described.read(job);
      if (!value) continue;
      ClientMetric& metric = Add(family, job);
      (described.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = *value;
    }
    families.push_back(std::move(family));
  }
  for (const HistogramFamily& described : kHistograms) {
    MetricFamily family =
        Empty(std::string("job_") + described.name, MetricType::Histogram, described.help);
    for (const JobFigures& job : live) {
      Add(family, job).histogram = job.meter.*described.histogram;
    }
    families.push_back(std::move(family));
  }
  std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
  return families;
}

}  // namespace sparsebalance
