// The measured result of a run, policy by policy: as a table for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/train/step_record.h"

namespace sparsebalance {

struct PolicySummary {
  std::string policy;
  uint64_t steps = 0;
  double step_ms_mean = 0;
  double step_ms_p50 = 0;
  double speedup = 0;  // mean step of the first policy over this one's, same batches
  double imbalance_mean = 0;
  double idle_fraction = 0;
  double coverage_mean = 0;
  double loss_first = 0;
  double loss_last = 0;
  double plan_wait_ms_mean = 0;
  double prediction_error_mean = 0;  // mean of predicted / measured step time, minus 1
  double tokens = 0;
  uint64_t sequences_trained = 0;
  uint64_t fallback_steps = 0;
  uint64_t skipped_steps = 0;
  double peak_memory_bytes = 0;
  double seconds = 0;  // sum of the steps
  // Audits of coverage: attention mass on the chosen blocks and what coverage said of it, means
  // over the audited sequences.
  uint64_t audited_sequences = 0;
  double audited_mass_mean = 0;
  double audited_coverage_mean = 0;
};

// Records of several policies that train side by side; policies keep the order of AddPolicy.
class RunReport {
 public:
  void AddPolicy(const std::string& policy);
  void Add(const std::string& policy, const StepRecord& record);

  std::vector<PolicySummary> Summaries() const;

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::vector<StepRecord>> records_;
};

// Aligned columns with a header; the speed-up is against the first row's policy.
std::string FormatTable(const std::vector<PolicySummary>& summaries);

// {"policies": [...]} with the fields of PolicySummary.
std::string FormatJson(const std::vector<PolicySummary>& summaries);

// One line about a step while it runs: policy, step, loss, tokens/s, imbalance, coverage.
std::string FormatProgress(const std::string& policy, const StepRecord& record, uint64_t steps);

// A JSON object in one line, for the record of steps.
std::string FormatStepJson(const std::string& policy, const StepRecord& record);

}  // namespace sparsebalance
