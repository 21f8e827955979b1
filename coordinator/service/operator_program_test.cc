// What operators do to a running coordinator, by the programs that they use.

#include <signal.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/program_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::Program;
using testing_support::ProgramTest;
using testing_support::TestClient;

class OperatorTest : public ProgramTest {
 protected:
  // Runs sbctl to its end; returns what it wrote after checking its exit code.
  std::string Run(const std::vector<std::string>& arguments, int code = 0) {
    const auto sbctl = Sbctl(arguments);
    EXPECT_EQ(sbctl->Wait(), code) << sbctl->Output();
    return sbctl->Output();
  }
};

TEST_F(OperatorTest, AnEvictedNodeEndsTheGenerationAndItsProcessCannotComeBack) {
  const auto program = Start();
  client_->FormPair("job");
  absl::Status told;
  v1::ExchangeStepResponse plan;
  std::thread waiting([&] { told = client_->Exchange("job", "a", 0, &plan); });
  client_->WaitFor("job", [](const v1::JobStatus& job) { return job.next_step() == 1; });
  EXPECT_EQ(Run({"evict", "job", "b", "--reason", "its fan is broken"}),
            "evicted b with rank 1; generation 1 is over");
  waiting.join();
  EXPECT_EQ(told.code(), absl::StatusCode::kAborted) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("its fan is broken"));

  v1::JoinJobResponse joined;
  const absl::Status again = client_->Join("job", "b", 0, &joined);
  EXPECT_EQ(again.code(), absl::StatusCode::kAborted) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("evicted"));
  EXPECT_THAT(Run({"evict", "job", "b"}, 1), HasSubstr("node b is not in job default/job"));
}

TEST_F(OperatorTest, AJobIsRemovedOnlyWithoutNodesOrByForce) {
  const auto program = Start();
  client_->FormPair("job");
  EXPECT_THAT(Run({"remove", "job"}, 1), HasSubstr("nodes are in job default/job"));
  EXPECT_EQ(Run({"remove", "job", "--force"}), "removed default/job");
  EXPECT_EQ(Run({"jobs"}), "no jobs");
  EXPECT_EQ(client_->Heartbeat("job", "a").code(), absl::StatusCode::kNotFound);
}

TEST_F(OperatorTest, DrainEndsTheProgramAsSigtermDoes) {
  const auto program = Start();
  client_->FormPair("job");
  EXPECT_EQ(Run({"drain", "--reason", "new kernel"}),
            absl::StrCat(address(), " hands over 1 job and ends"));
  EXPECT_EQ(program->Wait(), 0) << program->Output();
  EXPECT_THAT(program->Output(),
              AllOf(HasSubstr("asks for a drain: new kernel"), HasSubstr("everything is stored")));
}

TEST_F(OperatorTest, ABackupRestoresJobsJournalsAndProfilesElsewhere) {
  const std::string file = folder_ / "state.backup";
  uint64_t epoch = 0;
  {
    const auto program = Start();
    client_->FormPair("job");
    v1::ExchangeStepResponse answer;
    while (answer.consumed_count() < 1) {
      ASSERT_TRUE(client_->Consume("job", "a", 0, {1, 2, 3}, &answer).ok());
    }
    epoch = answer.leader_epoch();
    v1::PutProfileRequest put;
    put.mutable_profile()->mutable_key()->set_device_class("cpu");
    put.mutable_profile()->mutable_key()->set_model_class("tiny");
    put.mutable_profile()->mutable_model()->set_per_token_ms(0.01);
    put.mutable_profile()->mutable_model()->set_forward_fraction(0.3);
    put.mutable_profile()->mutable_model()->set_block_tokens(64);
    v1::PutProfileResponse put_answer;
    ASSERT_TRUE(client_->Call(&TestClient::Stub::PutProfile, put, &put_answer).ok());
    EXPECT_EQ(Run({"backup", file}), absl::StrCat("wrote 1 job to ", file));
    EXPECT_THAT(Run({"restore", file}, 1),
                HasSubstr("job default/job is here already, with nodes"));
    program->Signal(SIGTERM);
    EXPECT_EQ(program->Wait(), 0);
  }
  const auto program = Start({"--store", folder_ / "other.db"});
  EXPECT_EQ(Run({"restore", file}), "restored 1 job, 1 profiles, 1 consumed batches");
  const v1::JobStatus job = client_->Status("job");
  EXPECT_EQ(job.generation(), 1u);
  EXPECT_EQ(job.sequences_consumed(), 3u);
  EXPECT_EQ(job.latency_source(), "profile");
  EXPECT_GT(job.leader_epoch(), epoch);
  EXPECT_THAT(Run({"restore", file}, 1), HasSubstr("--replace"));
  EXPECT_EQ(Run({"restore", "--replace", file}), "restored 1 job, 1 profiles, 1 consumed batches");

  std::ofstream(folder_ / "cut.backup") << "sparsebalance backup 1\n";
  EXPECT_THAT(Run({"restore", folder_ / "cut.backup"}, 1), HasSubstr("cut short"));
}

TEST_F(OperatorTest, WatchShowsEveryChangeAndEndsWhenTold) {
  const auto program = Start();
  client_->Register("job");
  const auto watch = Sbctl({"watch", "job", "--updates", "2"});
  ASSERT_TRUE(watch->WaitForLine("registered").has_value()) << watch->Output();
  absl::Status status;
  v1::JoinJobResponse joined;
  std::thread waiting([&] { status = client_->Join("job", "a", 0, &joined); });
  EXPECT_EQ(watch->Wait(), 0) << watch->Output();
  EXPECT_THAT(watch->Output(), HasSubstr("joining"));
  EXPECT_THAT(Run({"watch", "--updates", "1"}), HasSubstr("default/job"));
  program->Signal(SIGTERM);
  waiting.join();
}

TEST_F(OperatorTest, CompletionKnowsEveryVerbAndWhereJobsGo) {
  const auto program = Start();
  client_->Register("job");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = Run({"completion", shell});
    // fish writes flags without their dashes.
    EXPECT_THAT(script, AllOf(HasSubstr("restore"), HasSubstr("replace"), HasSubstr("evict")))
        << shell;
  }
  EXPECT_EQ(Run({"--format", "names", "jobs"}), "default/job");
  EXPECT_THAT(Run({"completion", "tcsh"}, 1), HasSubstr("only for bash, zsh and fish"));

  // The script itself, in the shell that it is for.
  std::ofstream(folder_ / "complete.sh")
      << Run({"completion", "bash"})
      << "\nPATH=" << Program("sbctl").substr(0, Program("sbctl").rfind('/')) << ":$PATH\n"
      << "export SPARSEBALANCE_COORDINATOR=" << address() << "\n"
      << "COMP_WORDS=(sbctl job de); COMP_CWORD=2; _sbctl; echo \"jobs: ${COMPREPLY[*]}\"\n"
      << "COMP_WORDS=(sbctl re); COMP_CWORD=1; _sbctl; echo \"verbs: ${COMPREPLY[*]}\"\n"
      << "COMP_WORDS=(sbctl restore --rep); COMP_CWORD=2; _sbctl; echo \"flags: "
         "${COMPREPLY[*]}\"\n";
  ChildProcess bash({"/bin/bash", folder_ / "complete.sh"});
  EXPECT_EQ(bash.Wait(), 0) << bash.Output();
  EXPECT_THAT(bash.Output(), HasSubstr("jobs: default/job"));
  EXPECT_THAT(bash.Output(), HasSubstr("verbs: remove restore replay"));
  EXPECT_THAT(bash.Output(), HasSubstr("flags: --replace"));
}

TEST_F(OperatorTest, ANewQuotaHoldsFromTheNextReloadOn) {
  const std::string file = folder_ / "coordinator.conf";
  std::ofstream(file) << "quota = [\"*:max-jobs=1\"]\n";
  const auto program = Start({"--config", file});
  client_->Register("one");
  const auto try_second = [&] {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = TestClient::Spec("two");
    v1::RegisterJobResponse answer;
    return client_->Call(&TestClient::Stub::RegisterJob, request, &answer);
  };
  const absl::Status refused = try_second();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  const auto detail = planner::GetDetail<v1::QuotaExceeded>(refused);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->quota(), "max-jobs");
  EXPECT_EQ(detail->namespace_(), "default");

  std::ofstream(file, std::ios::trunc) << "quota = [\"*:max-jobs=none\"]\n";
  program->Signal(SIGHUP);
  ASSERT_TRUE(program->WaitForLine("nothing was changed").has_value()) << program->Output();
  EXPECT_FALSE(try_second().ok());

  std::ofstream(file, std::ios::trunc) << "quota = [\"*:max-jobs=2\"]\nkept-plans = 9\n";
  program->Signal(SIGHUP);
  ASSERT_TRUE(program->WaitForLine("changed: quota").has_value()) << program->Output();
  ASSERT_TRUE(program->WaitForLine("not before a restart: kept-plans").has_value())
      << program->Output();
  EXPECT_TRUE(try_second().ok());
}

TEST_F(OperatorTest, ConfigurationsAreCheckedWithoutBeingUsed) {
  const auto check = [&](std::vector<std::string> arguments, int code, const std::string& words) {
    arguments.insert(arguments.begin(), {Program("sparsebalance-coordinator"), "--check-config"});
    ChildProcess program(std::move(arguments));
    EXPECT_EQ(program.Wait(), code) << program.Output();
    EXPECT_EQ(program.lines(), 1u) << program.Output();
    EXPECT_THAT(program.Output(), HasSubstr(words));
  };
  check({"--listen", "127.0.0.1:1", "--store", folder_ / "never.db"}, 0,
        "the configuration is good");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "never.db"));
  check({"--lease", "30 parsecs"}, 2, "--lease: '30 parsecs' is not a duration above zero");
  check({"--kept-plan-bytes", "many"}, 2, "'many' is not a number of bytes");
  check({"--planner-threads", "99999999999"}, 2, "'99999999999' is too much");
  check({"--quota", "ml"}, 2, "--quota: quota 'ml': must be NAMESPACE:KEY=VALUE");
  check({"--store", "etcd://somewhere"}, 2, "is not HOST:PORT of a member of etcd");
  check({"--store", "etcd://127.0.0.1:2379", "--listen", "0.0.0.0:7070", "--insecure"}, 2,
        "--advertise HOST:PORT");
  check({"--store", "mysql://127.0.0.1"}, 2, "is of no known kind");
  check({"--tls-cert", "server.crt"}, 2, "go together: give all three or none");
  check({"--authorization", "rules.json"}, 2, "without --tls-cert");
  check({"--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c", "--insecure"}, 2,
        "--insecure asks for plaintext");
  check({"--tls-cert", folder_ / "absent.crt", "--tls-key", folder_ / "absent.key",
         "--tls-client-ca", folder_ / "absent.ca"},
        2, "absent");
}

}  // namespace
}  // namespace sparsebalance
