// The comparison of fixed and dynamic budgets by what models learn under them: figures of several
// seeds, their means, and the verdict. Knows nothing of how models are trained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sparsebalance::eval {

// Accuracies are shares of the queries, in [0, 1].
struct Accuracy {
  double all = 0;
  double beyond_own_block = 0;
  std::vector<double> by_distance;
};

// A trained model at some step.
struct ModelResult {
  uint64_t steps = 0;
  double seconds = 0;  // of training, by the clock of the comparison
  Accuracy accuracy;
};

struct SeedResult {
  uint64_t seed = 0;
  // Both after the same number of steps, and both after as many as fit into the time that the
  // faster of the two took for these.
  ModelResult fixed_equal_steps, dynamic_equal_steps;
  ModelResult fixed_equal_time, dynamic_equal_time;
  double fixed_coverage = 0, dynamic_coverage = 0;  // mean over steps, of the budgets used
  double fixed_budget = 0, dynamic_budget = 0;      // mean over sequences and layers, blocks
  double sequences_moved = 0;  // share of the sequences whose dynamic budget is not the fixed one
};

struct Estimate {
  double mean = 0;
  double error = 0;  // standard error of the mean; 0 with fewer than two values
};
Estimate EstimateOf(const std::vector<double>& values);

struct AccuracyVerdict {
  // Fixed budgets learn the task, also at distances beyond the own block: without that a
  // comparison says nothing.
  bool valid = false;
  bool equal_steps_met = false;           // dynamic >= fixed minus two standard errors of fixed
  bool equal_time_met = false;            // dynamic >= fixed
  Estimate fixed, fixed_beyond, dynamic;  // at equal steps
  Estimate fixed_equal_time, dynamic_equal_time;
  Estimate difference_equal_steps, difference_equal_time;  // dynamic - fixed, seed by seed
};

inline constexpr double kRequiredAccuracy = 0.8;

// `seeds` must not be empty.
AccuracyVerdict Judge(const std::vector<SeedResult>& seeds);

// Tables and verdict lines; `distances` names the buckets.
std::string FormatAccuracyReport(const std::vector<SeedResult>& seeds,
                                 const std::vector<std::string>& distances);

}  // namespace sparsebalance::eval
