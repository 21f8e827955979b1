// examples/trainer: what docs/integration.md promises to trainers that use the RPCs alone.
#include <signal.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/chaos/fault_proxy.h"
#include "tests/e2e/cluster.h"

namespace sparsebalance::e2e {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBatchSize = 8;

// The two ranks of a run, as processes.
struct Pair {
  std::array<std::unique_ptr<ChildProcess>, 2> ranks;

  void Signal(int signal) {
    for (const auto& rank : ranks) rank->Signal(signal);
  }
};

// Rank 1 reaches the coordinator at `address_of_1`, where one is given.
Pair StartPair(const Cluster& cluster, uint64_t first, uint64_t end,
               const std::string& address_of_1 = "") {
  Pair pair;
  for (size_t rank = 0; rank < pair.ranks.size(); ++rank) {
    const bool elsewhere = rank == 1 && !address_of_1.empty();
    pair.ranks[rank] = std::make_unique<ChildProcess>(std::vector<std::string>{
        Program("example-trainer"), elsewhere ? address_of_1 : cluster.address(),
        absl::StrCat(rank), absl::StrCat(first), absl::StrCat(end)});
  }
  return pair;
}

// A line "step 3 plan 00c0ffee00c0ffee: 24 27 31" or "step 3 fallback: 24 27 31".
struct Step {
  std::string plan;
  std::vector<uint64_t> sequences;
};

std::map<uint64_t, Step> StepsOf(ChildProcess& rank) {
  std::map<uint64_t, Step> steps;
  std::istringstream lines(rank.Output());
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    const bool trained = line.find(" plan ") < colon || line.find(" fallback") < colon;
    if (line.rfind("step ", 0) != 0 || !trained) continue;
    std::istringstream head(line.substr(0, colon));
    std::string word;
    uint64_t number = 0;
    head >> word >> number;
    Step& step = steps[number];
    EXPECT_TRUE(step.plan.empty()) << "step " << number << " was trained twice";
    std::getline(head >> std::ws, step.plan);
    std::istringstream ids(line.substr(colon + 2));
    for (uint64_t id = 0; ids >> id;) step.sequences.push_back(id);
  }
  return steps;
}

// Both ranks trained steps [first, end) by the same plans and every sequence once. Returns the
// number of steps without a plan of the coordinator.
int ExpectSound(Pair& pair, uint64_t first, uint64_t end) {
  std::array<std::map<uint64_t, Step>, 2> steps = {StepsOf(*pair.ranks[0]),
                                                   StepsOf(*pair.ranks[1])};
  int fallbacks = 0;
  for (uint64_t number = first; number < end; ++number) {
    EXPECT_EQ(steps[0][number].plan, steps[1][number].plan) << "step " << number;
    EXPECT_FALSE(steps[0][number].plan.empty()) << "step " << number << " was not trained";
    fallbacks += steps[0][number].plan == "fallback" ? 1 : 0;
    std::multiset<uint64_t> trained;
    std::multiset<uint64_t> batch;
    for (std::map<uint64_t, Step>& rank : steps) {
      trained.insert(rank[number].sequences.begin(), rank[number].sequences.end());
    }
    for (uint64_t i = 0; i < kBatchSize; ++i) batch.insert(number * kBatchSize + i);
    EXPECT_EQ(trained, batch) << "step " << number;
  }
  for (const std::map<uint64_t, Step>& rank : steps) EXPECT_EQ(rank.size(), end - first);
  return fallbacks;
}

Ran Sbctl(const Cluster& cluster, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {Program("sbctl"), "--coordinator", cluster.address(), "--format", "json"});
  return RunProgram(arguments);
}

TEST(FirstPlanTest, TheCallsAloneBringAPlanForEachSequence) {
  Cluster cluster;
  cluster.StartCoordinator();
  const Ran ran = RunProgram({Program("example-first-plan"), cluster.address()});
  EXPECT_EQ(ran.code, 0) << ran.output;
  std::multiset<uint64_t> planned;
  std::istringstream lines(ran.output);
  for (std::string line; std::getline(lines, line);) {
    unsigned long step = 0, sequence = 0;  // NOLINT(google-runtime-int): what scanf takes
    unsigned budget = 0;
    ASSERT_EQ(
        std::sscanf(line.c_str(), "step %lu sequence %lu budget %u", &step, &sequence, &budget), 3)
        << line;
    EXPECT_EQ(sequence / kBatchSize, step);
    EXPECT_GE(budget, 1u);
    planned.insert(sequence);
  }
  std::multiset<uint64_t> all;
  for (uint64_t id = 0; id < 3 * kBatchSize; ++id) all.insert(id);
  EXPECT_EQ(planned, all);
  EXPECT_THAT(Sbctl(cluster, {"job", "first-plan"}).output,
              HasSubstr(R"("state": "JOB_STATE_FINISHED")"));
}

TEST(FirstPlanTest, WithoutACoordinatorItSaysSo) {
  const Ran ran = RunProgram({Program("example-first-plan"), "127.0.0.1:1"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.output, HasSubstr("connect"));
}

TEST(TrainerExampleTest, RanksTrainByOnePlanAndReportWhatTheyTrained) {
  Cluster cluster;
  cluster.StartCoordinator();
  Pair pair = StartPair(cluster, 0, 12);
  for (const auto& rank : pair.ranks) EXPECT_EQ(rank->Wait(), 0) << rank->Output();
  EXPECT_LT(ExpectSound(pair, 0, 12), 12) << pair.ranks[0]->Output();

  const Ran job = Sbctl(cluster, {"job", "example"});
  EXPECT_THAT(job.output, HasSubstr(R"("state": "JOB_STATE_FINISHED")"));
  EXPECT_THAT(job.output, HasSubstr(R"("steps_reported": "12")"));
}

TEST(TrainerExampleTest, ACoordinatorThatIsKilledCostsPlansAndNoStep) {
  Cluster cluster;
  cluster.StartCoordinator();
  constexpr uint64_t kEnd = 300;
  Pair pair = StartPair(cluster, 0, kEnd);
  for (const auto& rank : pair.ranks) ASSERT_TRUE(rank->WaitForLine("step 3 plan").has_value());
  cluster.KillCoordinator();
  std::array<size_t, 2> fell_back{};
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto line = pair.ranks[rank]->WaitForLine(" fallback:");
    ASSERT_TRUE(line.has_value()) << pair.ranks[rank]->Output();
    fell_back[rank] = *line;
  }
  // However slow the machine is to start the next one, there are steps left to train by its plans.
  pair.Signal(SIGSTOP);
  cluster.StartCoordinator();
  pair.Signal(SIGCONT);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(pair.ranks[rank]->WaitForLine(" plan ", fell_back[rank]).has_value())
        << pair.ranks[rank]->Output();
    EXPECT_EQ(pair.ranks[rank]->Wait(), 0);
  }
  EXPECT_GT(ExpectSound(pair, 0, kEnd), 0);
  EXPECT_TRUE(cluster.coordinator().WaitForLine("generation 1: is kept").has_value())
      << cluster.coordinator().Output();
}

TEST(TrainerExampleTest, APlanThatOnlyOneRankHasIsUsedByNone) {
  Cluster cluster;
  cluster.StartCoordinator();
  chaos::FaultProxy proxy;
  proxy.SetTarget(cluster.port());
  constexpr uint64_t kEnd = 600;
  Pair pair = StartPair(cluster, 0, kEnd, proxy.address());
  size_t line = 0;
  int unused = 0;  // plans of rank 0 alone
  while (unused < 2) {
    // Rank 1's answer is lost; that of rank 0 is not.
    const auto planned = pair.ranks[1]->WaitForLine(" plan ", line);
    if (!planned.has_value()) break;  // all steps are done
    proxy.CutOnNext(chaos::FaultProxy::Way::kReply);
    const auto fell_back = pair.ranks[1]->WaitForLine(" fallback:", *planned);
    if (!fell_back.has_value()) break;
    line = *fell_back + 1;
    const std::string text = pair.ranks[1]->Line(*fell_back);
    const std::string step = text.substr(0, text.find(" fallback"));
    ASSERT_TRUE(pair.ranks[0]->WaitForLine(step + " ").has_value()) << pair.ranks[0]->Output();
    // A rank without a plan says why.
    if (pair.ranks[0]->Output().find(step + ": ") == std::string::npos) ++unused;
  }
  EXPECT_EQ(unused, 2);
  for (const auto& rank : pair.ranks) EXPECT_EQ(rank->Wait(), 0) << rank->Output();
  EXPECT_GE(ExpectSound(pair, 0, kEnd), 2);
}

TEST(TrainerExampleTest, AProcessThatIsLostEndsItsPeersAndAllGoOnFromACheckpoint) {
  Cluster cluster;
  cluster.StartCoordinator();
  Pair pair = StartPair(cluster, 0, 100000);
  ASSERT_TRUE(pair.ranks[0]->WaitForLine("step 6 plan").has_value()) << pair.ranks[0]->Output();
  pair.ranks[1]->Signal(SIGKILL);
  EXPECT_EQ(pair.ranks[0]->Wait(), 1);
  EXPECT_THAT(pair.ranks[0]->Output(), HasSubstr("start from a checkpoint"));

  Pair again = StartPair(cluster, 5, 12);
  for (const auto& rank : again.ranks) EXPECT_EQ(rank->Wait(), 0) << rank->Output();
  EXPECT_LT(ExpectSound(again, 5, 12), 7) << again.ranks[0]->Output();
  EXPECT_TRUE(cluster.coordinator()
                  .WaitForLine("is formed with 2 ranks on 2 nodes, next step 5")
                  .has_value())
      << cluster.coordinator().Output();
}

TEST(TrainerExampleTest, WaitsForACoordinatorAndSaysWhomItWaitsFor) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.KillCoordinator();
  ChildProcess first({Program("example-trainer"), cluster.address(), "0", "0", "3"});
  ASSERT_TRUE(first.WaitForLine("waiting: ").has_value()) << first.Output();
  cluster.StartCoordinator();
  ASSERT_TRUE(first.WaitForLine("waits for rank 1 to join").has_value()) << first.Output();
  ChildProcess second({Program("example-trainer"), cluster.address(), "1", "0", "3"});
  EXPECT_EQ(first.Wait(), 0) << first.Output();
  EXPECT_EQ(second.Wait(), 0) << second.Output();
}

}  // namespace
}  // namespace sparsebalance::e2e
