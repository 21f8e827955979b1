// Real coordinator, real workers, real sockets: what must hold of a training run.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"

namespace sparsebalance::e2e {
namespace {

using ::testing::HasSubstr;

void ExpectEachTrained(const std::map<uint64_t, int>& times, size_t sequences, int expected) {
  EXPECT_EQ(times.size(), sequences);
  for (const auto& [id, count] : times) EXPECT_EQ(count, expected) << "sequence " << id;
}

// How often each sequence was trained in what the final model has seen: a step that was run again
// from a checkpoint counts as its last run.
std::map<uint64_t, int> TimesInTheEnd(const std::vector<v1::PlanRecord>& records, uint64_t steps) {
  std::map<uint64_t, std::set<uint64_t>> last;  // by step
  for (const v1::PlanRecord& record : records) {
    for (const auto& [id, times] : TimesTrained({record}, 0, steps)) last[record.step()].insert(id);
  }
  std::map<uint64_t, int> times;
  for (const auto& [step, ids] : last) {
    for (const uint64_t id : ids) ++times[id];
  }
  return times;
}

TEST(TrainingTest, TwoWorkersTrainAnEpochByPlansAndLeaveASummary) {
  Cluster cluster;
  cluster.PackData(/*documents=*/90, /*shortest=*/20, /*longest=*/500);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps",
                                          "12"};  // an epoch: 11 batches of 8 and one of 2
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();

  const std::vector<v1::PlanRecord> records = cluster.Records("sparsebalance");
  ExpectEachTrained(TimesTrained(records, 0, 12), 90, 1);
  for (const v1::PlanRecord& record : records) EXPECT_FALSE(record.used_fallback());

  std::ifstream file(cluster.output() + "/summary.json");
  const nlohmann::json summary = nlohmann::json::parse(file);
  ASSERT_EQ(summary.at("policies").size(), 1u);
  const nlohmann::json& policy = summary.at("policies")[0];
  EXPECT_EQ(policy.at("policy"), "sparsebalance");
  EXPECT_EQ(policy.at("steps"), 12);
  EXPECT_EQ(policy.at("sequences_trained"), 90);
  EXPECT_EQ(policy.at("fallback_steps"), 0);
  EXPECT_LT(policy.at("loss_last"), policy.at("loss_first"));
  EXPECT_GE(policy.at("imbalance_mean"), 1.0);
  for (const char* field :
       {"step_ms_mean", "step_ms_p50", "speedup", "idle_fraction", "coverage_mean",
        "plan_wait_ms_mean", "prediction_error_mean", "tokens"}) {
    EXPECT_TRUE(policy.at(field).is_number()) << field;
  }

  // An operator sees the finished job, its plans and why.
  ChildProcess jobs({Program("sbctl"), "--coordinator", cluster.address(), "jobs"});
  EXPECT_EQ(jobs.Wait(), 0) << jobs.Output();
  EXPECT_THAT(jobs.Output(), HasSubstr("e2e"));
  ChildProcess plan(
      {Program("sbctl"), "--coordinator", cluster.address(), "plan", "e2e", "11", "--explain"});
  EXPECT_EQ(plan.Wait(), 0) << plan.Output();
  EXPECT_THAT(plan.Output(), HasSubstr("sparsebalance"));
}

TEST(TrainingTest, SeveralPoliciesTrainSideBySideOnTheSameBatches) {
  Cluster cluster;
  cluster.PackData(60, 20, 500);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps", "6",        "--block-steps",
                                          "2",       "--policy", "none,length,paper,sparsebalance"};
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  std::map<uint64_t, int> of_none = TimesTrained(cluster.Records("none"), 0, 6);
  EXPECT_EQ(of_none.size(), 48u);
  for (const char* policy : {"length", "paper", "sparsebalance"}) {
    EXPECT_EQ(TimesTrained(cluster.Records(policy), 0, 6), of_none) << policy;
    for (const v1::PlanRecord& record : cluster.Records(policy)) {
      EXPECT_EQ(record.plan().policy(), policy);
      EXPECT_FALSE(record.used_fallback());
    }
  }
}

TEST(TrainingTest, ANodeHoldsSeveralRanks) {
  Cluster cluster;
  cluster.PackData(40, 20, 500);
  cluster.StartCoordinator();
  auto both = cluster.StartWorker(3, 0, {"--ranks", "0,2", "--steps", "5"});
  auto single = cluster.StartWorker(3, 1, {"--steps", "5"});
  ASSERT_EQ(both->Wait(), 0) << both->Output();
  ASSERT_EQ(single->Wait(), 0) << single->Output();
  const std::vector<v1::PlanRecord> records = cluster.Records("sparsebalance");
  ExpectEachTrained(TimesTrained(records, 0, 5), 40, 1);
  for (const v1::PlanRecord& record : records) EXPECT_FALSE(record.used_fallback());
}

TEST(TrainingTest, TheCoverageThatARunMeasuredFeedsASimulation) {
  Cluster cluster;
  cluster.PackData(40, 200, 500);
  cluster.StartCoordinator();
  auto one = cluster.StartWorker(2, 1, {"--steps", "5"});
  auto zero = cluster.StartWorker(2, 0, {"--steps", "5"});
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  size_t curves = 0;
  const std::string folder = cluster.output() + "/coverage/sparsebalance";
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) ++curves;
    ChildProcess simulate({Program("sbctl"), "simulate", "--steps", "2", "--coverage", file.path(),
                           "--workload", cluster.dataset() + ".idx", "--block-tokens", "32"});
    EXPECT_EQ(simulate.Wait(), 0) << simulate.Output();
    EXPECT_THAT(simulate.Output(), HasSubstr("recorded curves of " + file.path().string()));
  }
  EXPECT_EQ(curves, 40U) << "every sequence of the epoch, on the node that trained it";
}

TEST(TrainingTest, AJobWithBudgetsByLayerTrainsByItsPlansAndAuditsCoverage) {
  Cluster cluster;
  cluster.PackData(60, 200, 500);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps", "10", "--layer-budgets", "--audit-every", "2"};
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  for (const v1::PlanRecord& record : cluster.Records("sparsebalance")) {
    EXPECT_FALSE(record.used_fallback());
  }
  EXPECT_THAT(zero->Output(), HasSubstr("sparsebalance: an audit of "));
}

TEST(TrainingTest, AMeasuredProfileServesTheCoordinatorAndASimulation) {
  Cluster cluster;
  cluster.PackData(40, 20, 500);
  cluster.StartCoordinator();
  // The model and machine of the training run that follows.
  std::vector<std::string> arguments = cluster.WorkerArguments(1, 0);
  arguments.insert(arguments.begin() + 1, "profile");
  const std::string file = cluster.folder() / "profile.json";
  for (const char* more : {"--seconds", "0.2", "--profile-output"}) arguments.emplace_back(more);
  arguments.push_back(file);
  ChildProcess profile(arguments);
  ASSERT_EQ(profile.Wait(), 0) << profile.Output();
  EXPECT_THAT(profile.Output(), HasSubstr("mean error of the fit "));
  EXPECT_THAT(profile.Output(), HasSubstr("given to the coordinator at 127.0.0.1:"));

  ChildProcess simulate({Program("sbctl"), "simulate", "--workload", "chatqa2-like", "--steps", "2",
                         "--dp", "2", "--pp", "1", "--block-tokens", "32", "--profile", file});
  EXPECT_EQ(simulate.Wait(), 0) << simulate.Output();

  auto worker = cluster.StartWorker(1, 0, {"--steps", "2"});
  ASSERT_EQ(worker->Wait(), 0) << worker->Output();
  EXPECT_THAT(worker->Output(), HasSubstr("using the coordinator's latency profile (measured"));
}

// Lines of a worker that tell of a trained step.
bool IsStep(const std::string& line) { return line.find(" tokens/s ") != std::string::npos; }
bool IsFallback(const std::string& line) {
  return line.find("(fallback plan)") != std::string::npos;
}

TEST(TrainingTest, TrainingOutlivesAKilledCoordinatorAndUsesPlansAgainAfterItsRestart) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps", "4000",     "--hidden-size",
                                          "96",      "--layers", "3"};
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  const auto step_4 = zero->WaitForLine("step   4/4000");
  ASSERT_TRUE(step_4.has_value()) << zero->Output();
  cluster.KillCoordinator();
  // A single late plan is a fallback plan too, and a plan that had come before the death is still
  // used: only several in a row say that no plan of the first life is left.
  int in_a_row = 0;
  const auto fallback = zero->WaitForLineThat(
      [&](const std::string& line) {
        if (!IsStep(line)) return false;
        in_a_row = IsFallback(line) ? in_a_row + 1 : 0;
        return in_a_row == 3;
      },
      zero->lines());
  ASSERT_TRUE(fallback.has_value()) << zero->Output();
  cluster.StartCoordinator();
  const auto again = zero->WaitForLineThat(
      [](const std::string& line) { return IsStep(line) && !IsFallback(line); }, *fallback);
  ASSERT_TRUE(again.has_value()) << zero->Output();
  ASSERT_TRUE(zero->WaitForLine("step  40/4000").has_value()) << zero->Output();
  one->Signal(SIGTERM);
  ASSERT_EQ(one->Wait(), 75) << one->Output();
  ASSERT_EQ(zero->Wait(), 75) << zero->Output();

  const std::vector<v1::PlanRecord> records = cluster.Records("sparsebalance");
  std::set<uint64_t> epochs_of_leader;
  uint64_t steps = 0;
  for (const v1::PlanRecord& record : records) {
    if (!record.used_fallback()) epochs_of_leader.insert(record.leader_epoch());
    steps = std::max(steps, record.step() + 1);
  }
  EXPECT_EQ(epochs_of_leader.size(), 2u) << "plans of both lives of the coordinator";
  // An epoch of the data set is 20 batches; the last one was not trained to its end.
  for (uint64_t first = 0; first + 20 <= steps; first += 20) {
    ExpectEachTrained(TimesTrained(records, first, first + 20), 160, 1);
  }
}

TEST(TrainingTest, SigtermFinishesTheStepCheckpointsAndAResumeTrainsTheRestOnce) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  std::vector<std::string> flags = {
      "--steps",       "20", "--checkpoint-dir", cluster.checkpoints(),
      "--hidden-size", "96", "--layers",         "3"};
  {
    auto one = cluster.StartWorker(2, 1, flags);
    auto zero = cluster.StartWorker(2, 0, flags);
    ASSERT_TRUE(zero->WaitForLine("step   3/20").has_value()) << zero->Output();
    one->Signal(SIGTERM);  // one node is asked, all leave
    EXPECT_EQ(one->Wait(), 75) << one->Output();
    EXPECT_EQ(zero->Wait(), 75) << zero->Output();
  }
  const size_t before = cluster.Records("sparsebalance").size();
  EXPECT_LT(before, 40u);
  flags.push_back("--resume");
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  ExpectEachTrained(TimesTrained(cluster.Records("sparsebalance"), 0, 20), 160, 1);
}

TEST(TrainingTest, LookAheadTrainsEachSequenceOnceThroughAStopAndADeadCoordinator) {
  Cluster cluster;
  cluster.PackData(60, 20, 500);
  cluster.StartCoordinator();
  std::vector<std::string> flags = {
      "--steps",           "30", "--global-batch-size", "2",
      "--lookahead-steps", "4",  "--checkpoint-dir",    cluster.checkpoints()};
  {
    auto one = cluster.StartWorker(2, 1, flags);
    auto zero = cluster.StartWorker(2, 0, flags);
    ASSERT_TRUE(zero->WaitForLine("step   6/30").has_value()) << zero->Output();
    one->Signal(SIGTERM);
    EXPECT_EQ(one->Wait(), 75) << one->Output();
    EXPECT_EQ(zero->Wait(), 75) << zero->Output();
  }
  flags.push_back("--resume");
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_TRUE(zero->WaitForLine("resuming from").has_value()) << zero->Output();
  cluster.KillCoordinator();
  cluster.StartCoordinator();
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  const std::vector<v1::PlanRecord> records = cluster.Records("sparsebalance");
  ExpectEachTrained(TimesTrained(records, 0, 30), 60, 1);
  int exchanged = 0;
  for (const v1::PlanRecord& record : records) {
    exchanged += record.plan().exchanges_size();
    EXPECT_LT(record.plan().max_displacement_steps(), 4u);
  }
  EXPECT_GT(exchanged, 0) << "nothing was exchanged: the test shows nothing";
}

TEST(TrainingTest, AfterAWorkersDeathTheOthersStopAndAllResumeFromTheCheckpoint) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  std::vector<std::string> flags = {"--steps",
                                    "20",
                                    "--checkpoint-dir",
                                    cluster.checkpoints(),
                                    "--checkpoint-every",
                                    "5",
                                    "--hidden-size",
                                    "96",
                                    "--layers",
                                    "3",
                                    "--max-rejoins",
                                    "0"};
  {
    auto one = cluster.StartWorker(2, 1, flags);
    auto zero = cluster.StartWorker(2, 0, flags);
    ASSERT_TRUE(zero->WaitForLine("step   7/20").has_value()) << zero->Output();
    one->Signal(SIGKILL);
    EXPECT_EQ(zero->Wait(), 4) << zero->Output();
    EXPECT_THAT(zero->Output(), HasSubstr("rank 1"));
  }
  flags.push_back("--resume");
  auto one = cluster.StartWorker(2, 1, flags);
  auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  EXPECT_THAT(zero->Output(), HasSubstr("resuming from"));
  ExpectEachTrained(TimesInTheEnd(cluster.Records("sparsebalance"), 20), 160, 1);
}

TEST(TrainingTest, AnEvictedWorkerEndsAndTheOthersJoinAnother) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  const auto flags = [&](const std::string& node, std::vector<std::string> more = {}) {
    std::vector<std::string> all = {"--steps",
                                    "20",
                                    "--checkpoint-dir",
                                    cluster.checkpoints(),
                                    "--checkpoint-every",
                                    "5",
                                    "--hidden-size",
                                    "96",
                                    "--layers",
                                    "3",
                                    "--node-id",
                                    node};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto evicted = cluster.StartWorker(2, 1, flags("slow"));
  const auto zero = cluster.StartWorker(2, 0, flags("zero"));
  ASSERT_TRUE(zero->WaitForLine("step   7/20").has_value()) << zero->Output();
  const Ran evict = RunProgram({Program("sbctl"), "--coordinator", cluster.address(), "evict",
                                "e2e", "slow", "--reason", "its fan is broken"});
  ASSERT_EQ(evict.code, 0) << evict.output;
  EXPECT_EQ(evicted->Wait(), 4) << evicted->Output();
  EXPECT_THAT(evicted->Output(), HasSubstr("an operator took this node out of the job"));
  // Another machine takes the rank.
  const auto another = cluster.StartWorker(2, 1, flags("fast", {"--resume"}));
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(another->Wait(), 0) << another->Output();
  ExpectEachTrained(TimesInTheEnd(cluster.Records("sparsebalance"), 20), 160, 1);
}

TEST(TrainingTest, AfterAWorkersDeathTheOthersJoinItsNewProcessWithoutHelp) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps",
                                          "20",
                                          "--checkpoint-dir",
                                          cluster.checkpoints(),
                                          "--checkpoint-every",
                                          "5",
                                          "--hidden-size",
                                          "96",
                                          "--layers",
                                          "3"};
  auto one = cluster.StartWorker(2, 1, flags);
  const auto zero = cluster.StartWorker(2, 0, flags);
  ASSERT_TRUE(zero->WaitForLine("step   7/20").has_value()) << zero->Output();
  one->Signal(SIGKILL);
  one->Wait();
  ASSERT_TRUE(zero->WaitForLine("joining again from the newest checkpoint, attempt 1 of 5"))
      << zero->Output();
  std::vector<std::string> again = flags;
  again.push_back("--resume");
  one = cluster.StartWorker(2, 1, again);
  ASSERT_EQ(zero->Wait(), 0) << zero->Output();
  ASSERT_EQ(one->Wait(), 0) << one->Output();
  EXPECT_THAT(zero->Output(), HasSubstr("resuming from"));
  ExpectEachTrained(TimesInTheEnd(cluster.Records("sparsebalance"), 20), 160, 1);
}

TEST(TrainingTest, AWorkerThatIsStartedAgainAfterTheLastStepWaitsForNobody) {
  Cluster cluster;
  cluster.PackData(30, 20, 300);
  cluster.StartCoordinator();
  std::vector<std::string> flags = {"--steps", "4", "--checkpoint-dir", cluster.checkpoints()};
  {
    auto one = cluster.StartWorker(2, 1, flags);
    auto zero = cluster.StartWorker(2, 0, flags);
    ASSERT_EQ(zero->Wait(), 0) << zero->Output();
    ASSERT_EQ(one->Wait(), 0) << one->Output();
  }
  flags.push_back("--resume");
  const auto again = cluster.StartWorker(2, 1, flags);
  EXPECT_EQ(again->Wait(), 0) << again->Output();
  EXPECT_THAT(again->Output(), HasSubstr("nothing is left to train"));
}

TEST(TrainingTest, AWorkerThatLosesItsPeerWithoutCheckpointsSaysThatItCannotGoOn) {
  Cluster cluster;
  cluster.PackData(160, 200, 500);
  cluster.StartCoordinator();
  auto one = cluster.StartWorker(2, 1, {"--steps", "2000"});
  const auto zero = cluster.StartWorker(2, 0, {"--steps", "2000"});
  ASSERT_TRUE(zero->WaitForLine("step   3/2000").has_value()) << zero->Output();
  one->Signal(SIGKILL);
  EXPECT_EQ(zero->Wait(), 4) << zero->Output();
  EXPECT_THAT(zero->Output(), HasSubstr("without --checkpoint-dir there is nothing to go on from"));
}

TEST(TrainingTest, WorkersWaitForACoordinatorThatComesLaterAndSaySo) {
  Cluster cluster;
  cluster.PackData(30, 20, 300);
  cluster.StartCoordinator();  // for its port
  cluster.KillCoordinator();
  auto one = cluster.StartWorker(2, 1, {"--steps", "3"});
  auto zero = cluster.StartWorker(2, 0, {"--steps", "3"});
  ASSERT_TRUE(zero->WaitForLine("waiting for the coordinator at " + cluster.address()).has_value())
      << zero->Output();
  cluster.StartCoordinator();
  EXPECT_EQ(zero->Wait(), 0) << zero->Output();
  EXPECT_EQ(one->Wait(), 0) << one->Output();
}

TEST(TrainingTest, ARecordedRunIsReplayedToTheSameLosses) {
  Cluster cluster;
  cluster.PackData(60, 20, 500);
  cluster.StartCoordinator();
  const auto losses = [&](const std::vector<std::string>& flags) {
    auto one = cluster.StartWorker(2, 1, flags);
    auto zero = cluster.StartWorker(2, 0, flags);
    EXPECT_EQ(zero->Wait(), 0) << zero->Output();
    EXPECT_EQ(one->Wait(), 0) << one->Output();
    std::vector<double> values;
    std::ifstream in(flags.back() + "/steps.jsonl");
    for (std::string line; std::getline(in, line);) {
      values.push_back(nlohmann::json::parse(line).at("loss"));
    }
    return values;
  };
  const std::string first = cluster.folder() / "first";
  const std::vector<double> recorded = losses({"--steps", "7", "--output", first});
  ASSERT_EQ(recorded.size(), 7u);
  const std::vector<double> replayed =
      losses({"--steps", "7", "--job", "again", "--replay-plans", first + "/plans/sparsebalance",
              "--output", cluster.folder() / "second"});
  EXPECT_EQ(recorded, replayed);
}

}  // namespace
}  // namespace sparsebalance::e2e
