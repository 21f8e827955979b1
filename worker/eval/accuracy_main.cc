// The benchmark `accuracy`: what a model learns under dynamic budgets, against fixed ones.
//
//   build/release/bench/accuracy --seeds 5
//
// Exit code 0: both criteria are met; 1: one is not, or the comparison is void; 2: it did not run.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "coordinator/planner/settings_text.h"
#include "spdlog/spdlog.h"
#include "worker/eval/accuracy_report.h"
#include "worker/eval/accuracy_run.h"

namespace sparsebalance::eval {
namespace {

std::string Report(const AccuracyRunOptions& options, const std::string& coverage_floor,
                   const std::vector<SeedResult>& results) {
  std::vector<std::string> distances;
  for (const DistanceRange& range : options.task.distances) {
    distances.push_back(DistanceName(range));
  }
  return absl::StrFormat(
             "Recall task: sequences of up to %d blocks of %d tokens, %d values (guessing: %.1f "
             "%%), base budget %d blocks, coverage floor %s; %d ranks, %d sequences a step, %d "
             "steps, %d seeds, %d held-out sequences a seed. Seconds: CPU time of forward and "
             "backward, slowest rank "
             "of each step.\n\n",
             options.task.MaxBlocks(), options.task.block_tokens, options.task.values,
             100.0 / static_cast<double>(options.task.values), options.base_budget_blocks,
             coverage_floor, options.ranks, options.global_batch_size, options.steps,
             results.size(), options.held_out_sequences) +
         FormatAccuracyReport(results, distances);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Trains on the recall task under fixed and under dynamic budgets and compares what was "
      "learned.",
      "accuracy");
  AccuracyRunOptions options;
  options.folder = "build/bench/accuracy";
  uint64_t seeds = 5;
  std::string coverage_floor = "0.97";
  app.add_option("--seeds", seeds, "runs, each with parameters and data of its own")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "steps of each model")->capture_default_str();
  app.add_option("--base-budget", options.base_budget_blocks, "the fixed budget, in blocks")
      ->capture_default_str();
  app.add_option(
         "--coverage-floor", coverage_floor,
         "of the dynamic policy: baseline, guard, fixed, or a mean coverage between 0 and 1")
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "peak; falls to a tenth along a cosine")
      ->capture_default_str();
  app.add_option("--global-batch-size", options.global_batch_size, "sequences a step")
      ->capture_default_str();
  app.add_option("--lengths", options.task.lengths,
                 "tokens of a sequence, drawn evenly; repeat one to have more of it")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--block-tokens", options.task.block_tokens, "tokens in a block of attention")
      ->capture_default_str();
  app.add_option("--max-tokens-per-micro-batch", options.max_tokens_per_micro_batch,
                 "cap of a micro-batch")
      ->capture_default_str();
  app.add_option("--held-out-sequences", options.held_out_sequences, "that are asked")
      ->capture_default_str();
  app.add_option("--keys", options.task.keys, "different keys of the task; one a block is needed")
      ->capture_default_str();
  app.add_option("--values", options.task.values, "different values of the task")
      ->capture_default_str();
  app.add_flag("!--planner-sees-wall-time", options.planner_sees_cpu_time,
               "the planner learns from wall time, with what other processes add to it");
  app.add_option("--output", options.folder, "folder for data, records and report.txt")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const absl::Status status =
          planner::ParseCoverageFloor(coverage_floor, options.coverage_floor);
      !status.ok()) {
    std::cerr << "accuracy: --coverage-floor: " << status.message() << std::endl;
    return 2;
  }
  spdlog::set_level(spdlog::level::warn);  // the coordinator's log
  options.log = [](const std::string& line) { std::cout << line << std::endl; };
  // What an earlier run left would be taken for this one's.
  std::error_code error;
  std::filesystem::remove_all(options.folder, error);

  std::vector<SeedResult> results;
  std::string report;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    absl::StatusOr<SeedResult> result = RunAccuracySeed(options, seed);
    if (!result.ok()) {
      std::cerr << "accuracy: seed " << seed << ": " << std::string(result.status().message())
                << std::endl;
      return 2;
    }
    results.push_back(*std::move(result));
    // After every seed: a run that is broken off has something to show.
    report = Report(options, coverage_floor, results);
    std::ofstream(options.folder + "/report.txt") << report;
  }
  std::cout << "\n" << report << std::flush;
  const AccuracyVerdict verdict = Judge(results);
  return verdict.valid && verdict.equal_steps_met && verdict.equal_time_met ? 0 : 1;
}

}  // namespace
}  // namespace sparsebalance::eval

int main(int argc, char** argv) { return sparsebalance::eval::Main(argc, argv); }
