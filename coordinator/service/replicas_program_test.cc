// Replicas of the coordinator on a real etcd: who answers, and what happens when something dies.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/cli/coordinator_session.h"
#include "coordinator/service/program_test_util.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::EtcdCluster;
using testing_support::Program;
using testing_support::TempFolder;
using testing_support::TestClient;

constexpr absl::Duration kTakeOver = absl::Seconds(2);

class ReplicasTest : public testing::Test {
 protected:
  void SetUp() override {
    SPARSEBALANCE_SKIP_WITHOUT_ETCD();
    EtcdCluster::Options options;
    options.members = 3;
    etcd_ = std::make_unique<EtcdCluster>(options);
    ASSERT_FALSE(HasFailure()) << "no etcd, no test";
    for (size_t i = 0; i < replicas_.size(); ++i) StartReplica(i);
  }

  void StartReplica(size_t index) {
    const std::string ports = folder_ / absl::StrCat("ports-", index);
    std::filesystem::remove(ports);
    // Clients are sent to the address that a replica advertises, so its port is chosen before.
    if (ports_[index] == 0) ports_[index] = FreePort();
    replicas_[index] = std::make_unique<ChildProcess>(std::vector<std::string>{
        Program("sparsebalance-coordinator"), "--listen", Address(index), "--metrics-listen", "off",
        "--store", absl::StrCat("etcd://", absl::StrJoin(etcd_->endpoints(), ","), "/test/"),
        "--take-over", absl::FormatDuration(kTakeOver), "--etcd-timeout", "2s", "--port-file",
        ports});
    ASSERT_TRUE(replicas_[index]->WaitForLine("serving").has_value()) << replicas_[index]->Output();
  }

  static int FreePort() {
    // Bound and given back: the kernel hands out others before this one comes round again.
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    close(fd);
    return ntohs(address.sin_port);
  }
  std::string Address(size_t index) const { return absl::StrCat("127.0.0.1:", ports_[index]); }

  CoordinatorSession Session(size_t index) const {
    return CoordinatorSession(Address(index), absl::Seconds(10), [](const std::string& address) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    });
  }

  // Registers the job at a replica, wherever it is answered for, until that has come about.
  static v1::RegisterJobResponse Register(CoordinatorSession& session, const std::string& name,
                                          uint64_t known = 0,
                                          absl::Duration within = absl::Seconds(60)) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = TestClient::Spec(name);
    request.set_known_leader_epoch(known);
    v1::RegisterJobResponse answer;
    absl::Status status;
    const absl::Time deadline = absl::Now() + within;
    do {
      status = session.Call(&v1::Coordinator::Stub::RegisterJob, request, &answer);
      if (status.ok()) break;
      absl::SleepFor(absl::Milliseconds(50));
    } while (absl::Now() < deadline);
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }

  size_t IndexOf(const std::string& address) const {
    for (size_t i = 0; i < ports_.size(); ++i) {
      if (Address(i) == address) return i;
    }
    ADD_FAILURE() << address << " is no replica";
    return 0;
  }

  TempFolder folder_;
  std::unique_ptr<EtcdCluster> etcd_;
  std::array<int, 3> ports_{};
  std::array<std::unique_ptr<ChildProcess>, 3> replicas_;
};

TEST_F(ReplicasTest, AnyReplicaLeadsToTheOneThatAnswers) {
  CoordinatorSession first = Session(1);
  Register(first, "job");
  EXPECT_EQ(first.address(), Address(1));
  for (const size_t other : {size_t{0}, size_t{2}}) {
    CoordinatorSession session = Session(other);
    Register(session, "job");
    EXPECT_EQ(session.address(), Address(1));
    v1::ListJobsResponse listed;
    CoordinatorSession lists = Session(other);
    ASSERT_TRUE(lists.Call(&v1::Coordinator::Stub::ListJobs, v1::ListJobsRequest(), &listed).ok());
    ASSERT_EQ(listed.jobs_size(), 1);
    EXPECT_EQ(listed.jobs(0).owner_address(), Address(1));
  }
  ChildProcess sbctl({Program("sbctl"), "--coordinator", Address(0), "jobs"});
  EXPECT_EQ(sbctl.Wait(), 0) << sbctl.Output();
  EXPECT_THAT(sbctl.Output(), HasSubstr("registered"));
}

TEST_F(ReplicasTest, AKilledOwnerIsReplacedWithinTheTakeOverTime) {
  CoordinatorSession session = Session(0);
  const uint64_t epoch = Register(session, "job").leader_epoch();
  replicas_[0]->Signal(SIGKILL);
  replicas_[0]->Wait();
  CoordinatorSession other = Session(1);
  const absl::Time killed = absl::Now();
  const auto answer = Register(other, "job", epoch);
  // The lease, as etcd rounds it, and a margin for a loaded machine.
  EXPECT_LT(absl::Now() - killed, kTakeOver * 2 + absl::Seconds(8));
  EXPECT_GT(answer.leader_epoch(), epoch);
}

TEST_F(ReplicasTest, ADrainedOwnerHandsItsJobsOverAtOnce) {
  CoordinatorSession session = Session(0);
  const uint64_t epoch = Register(session, "job").leader_epoch();
  replicas_[0]->Signal(SIGTERM);
  EXPECT_EQ(replicas_[0]->Wait(), 0) << replicas_[0]->Output();
  CoordinatorSession other = Session(1);
  v1::RegisterJobRequest request;
  *request.mutable_spec() = TestClient::Spec("job");
  v1::RegisterJobResponse answer;
  // The first call that is made may find it: nothing has to run out.
  const absl::Status status = other.Call(&v1::Coordinator::Stub::RegisterJob, request, &answer);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(answer.leader_epoch(), epoch);
}

TEST_F(ReplicasTest, AnOwnerThatStoodStillAnswersForNothingWhenItWakes) {
  CoordinatorSession session = Session(0);
  const uint64_t epoch = Register(session, "job").leader_epoch();
  replicas_[0]->Signal(SIGSTOP);
  CoordinatorSession other = Session(1);
  const auto answer = Register(other, "job", epoch);
  EXPECT_GT(answer.leader_epoch(), epoch);
  replicas_[0]->Signal(SIGCONT);
  CoordinatorSession woken = Session(0);
  v1::GetJobRequest get;
  get.mutable_job()->set_name("job");
  v1::GetJobResponse got;
  // It knows at once that its time is over, and soon who has the job.
  absl::Status status;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  do {
    status = woken.Call(&v1::Coordinator::Stub::GetJob, get, &got);
    if (!status.ok()) {
      EXPECT_TRUE(planner::GetDetail<v1::NotOwner>(status).has_value()) << status;
    }
  } while (!status.ok() && absl::Now() < deadline);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(woken.address(), Address(1));
  EXPECT_EQ(got.status().leader_epoch(), answer.leader_epoch());
}

TEST_F(ReplicasTest, OneMemberOfEtcdMayDieAndTwoCostOnlyTime) {
  CoordinatorSession session = Session(0);
  const uint64_t epoch = Register(session, "job").leader_epoch();
  etcd_->Kill(2);
  ASSERT_TRUE(etcd_->WaitUntilServing());
  const uint64_t same = Register(session, "job").leader_epoch();
  EXPECT_GE(same, epoch);
  // The election after the first death may have cost the job its owner already.
  ChildProcess& owner = *replicas_[IndexOf(session.address())];
  const size_t before = owner.lines();
  etcd_->Kill(1);
  ASSERT_TRUE(owner.WaitForLine("no longer answered for", before).has_value()) << owner.Output();
  etcd_->Start(1);
  etcd_->Start(2);
  ASSERT_TRUE(etcd_->WaitUntilServing());
  CoordinatorSession again = Session(0);
  EXPECT_GT(Register(again, "job", same).leader_epoch(), same);
}

}  // namespace
}  // namespace sparsebalance
