// Rounds of training in which things go wrong, drawn from a seed: coordinators, workers and members
// of etcd are killed, stopped past their leases and woken, cut off, slowed down, and lose requests
// and replies. After each round the run must have ended, and its history must stand up.
//
//   SPARSEBALANCE_CHAOS_ROUNDS  rounds (10)
//   SPARSEBALANCE_CHAOS_SEED    first seed (1): a failed round names its own

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/cli/coordinator_session.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/chaos/fleet.h"
#include "tests/chaos/history.h"
#include "tests/e2e/cluster.h"

namespace sparsebalance::chaos {
namespace {

using testing_support::ChildProcess;

constexpr uint64_t kSequences = 96;
constexpr uint64_t kBatch = 8;
constexpr uint64_t kSteps = 240;  // twenty epochs
// A job that trains no step for so long hangs.
constexpr absl::Duration kBound = absl::Seconds(180);

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// One thing that goes wrong, and how it ends.
struct Fault {
  std::string name;
  std::function<void()> begin;
  std::function<void()> end;
};

class Round {
 public:
  Round(Fleet& fleet, const e2e::Cluster& data, uint64_t seed, const std::filesystem::path& folder)
      : fleet_(fleet),
        data_(data),
        random_(seed),
        job_(absl::StrCat("chaos-", seed)),
        folder_(folder / job_) {
    std::filesystem::create_directories(folder_);
  }
  ~Round() {
    // Checkpoints of hundreds of rounds would fill a disk.
    std::error_code error;
    if (!testing::Test::HasFailure()) std::filesystem::remove_all(folder_, error);
  }

  // What went wrong on purpose, in order.
  const std::vector<std::string>& story() const { return story_; }

  std::vector<std::string> Run() {
    for (size_t rank = 0; rank < 2; ++rank) StartWorker(rank, /*resume=*/false);
    const int faults = Draw(2, 4);
    for (int i = 0; i < faults; ++i) {
      AwaitStep(static_cast<uint64_t>(Draw(4, static_cast<int>(kSteps) * 3 / 4)));
      std::vector<Fault> together = {DrawFault()};
      if (Draw(0, 2) == 0) together.push_back(DrawFault());
      for (const Fault& fault : together) {
        story_.push_back(fault.name);
        fault.begin();
      }
      absl::SleepFor(absl::Milliseconds(Draw(100, 4000)));
      for (const Fault& fault : together) fault.end();
    }
    fleet_.Heal();
    AwaitStandstill();
    for (size_t rank = 0; rank < 2; ++rank) {
      const int code = workers_[rank]->Wait(kBound);
      if (code != 0) objections_.push_back(absl::StrCat("worker ", rank, " ended with ", code));
    }
    for (std::string& objection : Objections(ReadHistories(folder_ / "out/plans/sparsebalance"),
                                             {kSteps, kSequences, kBatch})) {
      objections_.push_back(std::move(objection));
    }
    AskTheCoordinator();
    return objections_;
  }

  std::string Logs() {
    std::string logs;
    for (size_t rank = 0; rank < 2; ++rank) {
      absl::StrAppend(&logs, "--- worker ", rank, "\n", old_logs_[rank], workers_[rank]->Output());
    }
    return logs;
  }

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void StartWorker(size_t rank, bool resume) {
    std::vector<std::string> flags = {"--coordinator",
                                      fleet_.addresses(),
                                      "--job",
                                      job_,
                                      "--output",
                                      folder_ / "out",
                                      "--checkpoint-dir",
                                      folder_ / "checkpoints",
                                      "--checkpoint-every",
                                      "10",
                                      "--steps",
                                      absl::StrCat(kSteps),
                                      "--global-batch-size",
                                      absl::StrCat(kBatch),
                                      "--hidden-size",
                                      "96",
                                      "--layers",
                                      "4",
                                      "--max-rejoins",
                                      "50",
                                      "--plan-deadline-ms",
                                      "100",
                                      "--collective-timeout-s",
                                      "20",
                                      "--no-profile-at-start"};
    if (resume) flags.push_back("--resume");
    workers_[rank] = data_.StartWorker(2, static_cast<int>(rank), flags);
  }

  // Until rank 0 has trained the step, or has ended.
  void AwaitStep(uint64_t wanted) {
    workers_[0]->WaitForLineThat(
        [&](const std::string& line) {
          const size_t at = line.find("step ");
          if (at == std::string::npos) return false;
          uint64_t step = 0;
          const size_t slash = line.find('/', at);
          return slash != std::string::npos &&
                 absl::SimpleAtoi(line.substr(at + 5, slash - at - 5), &step) && step >= wanted;
        },
        0, absl::Seconds(60));
  }

  // Until rank 0 has ended, or trains no more. How long a step takes is up to sanitizers and to
  // what else the machine does.
  void AwaitStandstill() {
    const auto is_step = [](const std::string& line) {
      return line.find("step ") != std::string::npos && line.find("tokens/s") != std::string::npos;
    };
    size_t next = 0;
    while (const auto line = workers_[0]->WaitForLineThat(is_step, next, kBound)) next = *line + 1;
  }

  Fault DrawFault() {
    const size_t replica = static_cast<size_t>(Draw(0, static_cast<int>(fleet_.replicas()) - 1));
    const std::string name = absl::StrCat(" ", replica);
    FaultProxy& proxy = fleet_.proxy(replica);
    const auto heal = [&proxy] { proxy.Heal(); };
    const int kinds = fleet_.etcd_members() > 0 ? 11 : 9;
    switch (Draw(0, kinds - 1)) {
      case 0:
        return {"kill coordinator" + name, [=, this] { fleet_.Kill(replica); },
                [=, this] { fleet_.Start(replica); }};
      case 1:
        return {"stop and wake coordinator" + name, [=, this] { fleet_.Pause(replica); },
                [=, this] { fleet_.Resume(replica); }};
      case 2:
        return {"drain coordinator" + name, [=, this] { DrainReplica(replica); },
                [=, this] { fleet_.Start(replica); }};
      case 3:
        return {"partition" + name, [&proxy] { proxy.SetPartitioned(true); }, heal};
      case 4: {
        const auto delay = absl::Milliseconds(Draw(20, 400));
        return {absl::StrCat("delay", name, " by ", absl::FormatDuration(delay)),
                [&proxy, delay] { proxy.SetDelay(delay); }, heal};
      }
      case 5:
        return {"cut connections of" + name, [&proxy] { proxy.CutAll(); }, heal};
      case 6:
        return {"lose a request to" + name,
                [&proxy] { proxy.CutOnNext(FaultProxy::Way::kRequest); }, heal};
      case 7:
        return {"lose a reply of" + name, [&proxy] { proxy.CutOnNext(FaultProxy::Way::kReply); },
                heal};
      case 8: {
        const size_t rank = static_cast<size_t>(Draw(0, 1));
        return {absl::StrCat("kill worker ", rank), [=, this] { KillWorker(rank); },
                [=, this] { RestartWorker(rank); }};
      }
      default: {
        const size_t member = static_cast<size_t>(Draw(0, 2));
        if (Draw(0, 3) == 0) {
          return {"kill two members of etcd",
                  [=, this] {
                    fleet_.KillEtcd(member);
                    fleet_.KillEtcd((member + 1) % 3);
                  },
                  [=, this] {
                    fleet_.StartEtcd(member);
                    fleet_.StartEtcd((member + 1) % 3);
                  }};
        }
        return {absl::StrCat("kill etcd member ", member), [=, this] { fleet_.KillEtcd(member); },
                [=, this] { fleet_.StartEtcd(member); }};
      }
    }
  }

  void DrainReplica(size_t replica) {
    const int code = fleet_.Drain(replica);
    // 1: the store was away, which is another fault of this round.
    if (code != 0 && code != 1) {
      objections_.push_back(absl::StrCat("a drained coordinator ended with ", code));
    }
  }

  void KillWorker(size_t rank) {
    workers_[rank]->Signal(SIGKILL);
    workers_[rank]->Wait();
  }
  void RestartWorker(size_t rank) {
    absl::StrAppend(&old_logs_[rank], workers_[rank]->Output());
    StartWorker(rank, /*resume=*/true);
  }

  // The journal has no objections, and callers of the past are refused.
  void AskTheCoordinator() {
    CoordinatorSession session(
        fleet_.proxy(0).address(), absl::Seconds(10), [](const std::string& address) {
          return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
        });
    v1::GetJobRequest request;
    request.mutable_job()->set_name(job_);
    v1::GetJobResponse answer;
    absl::Status status;
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    do {
      status = session.Call(&v1::Coordinator::Stub::GetJob, request, &answer);
      if (status.ok()) break;
      absl::SleepFor(absl::Milliseconds(100));
      // Nobody has asked for it since it was lost: there is nothing to be wrong.
      const auto owner = planner::GetDetail<v1::NotOwner>(status);
      if (owner && owner->owner_address().empty()) return;
    } while (absl::Now() < deadline);
    if (!status.ok()) {
      objections_.push_back(absl::StrCat("the coordinator cannot be asked: ", status.ToString()));
      return;
    }
    if (answer.status().sequences_consumed_twice() != 0) {
      objections_.push_back(absl::StrCat("the journal counts ",
                                         answer.status().sequences_consumed_twice(),
                                         " sequences that were consumed twice"));
    }
    v1::HeartbeatRequest stale;
    *stale.mutable_node()->mutable_job() = request.job();
    stale.mutable_node()->set_node_id("node-0");
    stale.mutable_node()->set_incarnation(1);
    stale.mutable_node()->set_generation(1);
    v1::HeartbeatResponse unwanted;
    const absl::Status refused = session.Call(&v1::Coordinator::Stub::Heartbeat, stale, &unwanted);
    if (!absl::IsAborted(refused)) {
      objections_.push_back(
          absl::StrCat("a process of the past was not refused: ", refused.ToString()));
    }
  }

  Fleet& fleet_;
  const e2e::Cluster& data_;
  std::mt19937_64 random_;
  const std::string job_;
  const std::filesystem::path folder_;
  std::array<std::unique_ptr<ChildProcess>, 2> workers_;
  std::array<std::string, 2> old_logs_;
  std::vector<std::string> story_;
  std::vector<std::string> objections_;
};

class Chaos : public testing::TestWithParam<Fleet::Kind> {};

TEST_P(Chaos, LeavesEveryRunSound) {
  if (GetParam() == Fleet::Kind::kEtcd) SPARSEBALANCE_SKIP_WITHOUT_ETCD();
  e2e::Cluster data;
  data.PackData(static_cast<int>(kSequences), 20, 500);
  const std::filesystem::path folder = std::filesystem::path(data.output()).parent_path();
  Fleet fleet(GetParam(), folder);
  const uint64_t rounds = FromEnvironment("SPARSEBALANCE_CHAOS_ROUNDS", 10);
  const uint64_t first = FromEnvironment("SPARSEBALANCE_CHAOS_SEED", 1);
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    Round round(fleet, data, seed, folder);
    const absl::Time begin = absl::Now();
    const std::vector<std::string> objections = round.Run();
    std::cout << "seed " << seed << ": " << absl::StrJoin(round.story(), ", ") << ": "
              << (objections.empty() ? "sound" : "NOT SOUND") << " after "
              << absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(10)))
              << std::endl;
    ASSERT_TRUE(objections.empty())
        << "seed " << seed << " (SPARSEBALANCE_CHAOS_SEED=" << seed
        << " SPARSEBALANCE_CHAOS_ROUNDS=1)\n  " << absl::StrJoin(objections, "\n  ") << "\n"
        << round.Logs() << fleet.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Chaos, testing::Values(Fleet::Kind::kSqlite, Fleet::Kind::kEtcd),
                         [](const testing::TestParamInfo<Fleet::Kind>& info) {
                           return info.param == Fleet::Kind::kSqlite ? "WithOneCoordinator"
                                                                     : "WithReplicasOnEtcd";
                         });

}  // namespace
}  // namespace sparsebalance::chaos
