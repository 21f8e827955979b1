// The coordinator with mutual TLS and rules, by the programs that people use.

#include <httplib.h>
#include <signal.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/security/test_pki.h"
#include "coordinator/service/program_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::ChildProcess;
using testing_support::Program;
using testing_support::ProgramTest;

constexpr char kRules[] = R"({
  // A trainer's namespace is part of its name.
  "rules": [
    {"san": "spiffe://cluster/ns/{namespace}/sa/trainer", "role": "node"},
    {"san": "dns:grafana.example.org", "role": "reader", "namespaces": ["*"]},
    {"san": "dns:ops.example.org", "role": "operator", "namespaces": ["*"]}
  ]
})";

class SecureProgramTest : public ProgramTest {
 protected:
  SecureProgramTest() {
    std::signal(SIGPIPE, SIG_IGN);  // a server that hangs up during a handshake
    tls_.Write("ca.crt", ca_.certificate());
    Write("server", ca_.IssueServer());
    security::TestLeaf leaf;
    leaf.uris = {"spiffe://cluster/ns/ml/sa/trainer"};
    Write("trainer", ca_.Issue(leaf));
    leaf = {};
    leaf.dns = {"grafana.example.org"};
    Write("reader", ca_.Issue(leaf));
    leaf.dns = {"ops.example.org"};
    Write("operator", ca_.Issue(leaf));
    leaf.not_after = absl::Now() - absl::Minutes(1);
    Write("expired", ca_.Issue(leaf));
    const security::TestCa other("another");
    leaf.not_after = absl::Now() + absl::Hours(1);
    Write("stranger", other.Issue(leaf));
    tls_.Write("rules.json", kRules);
  }

  void Write(const std::string& name, const security::TestIdentity& identity) {
    tls_.Write(name + ".crt", identity.certificate);
    tls_.Write(name + ".key", identity.key);
  }

  std::unique_ptr<ChildProcess> StartSecure(const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {"--tls-cert",        tls_ / "server.crt", "--tls-key",
                                      tls_ / "server.key", "--tls-client-ca",   tls_ / "ca.crt",
                                      "--authorization",   tls_ / "rules.json", "--health-listen",
                                      "127.0.0.1:0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Start(flags);
  }

  // sbctl as somebody; its exit code and what it wrote.
  struct Ran {
    int code;
    std::string output;
  };
  Ran As(const std::string& who, std::vector<std::string> arguments) {
    if (!who.empty()) {
      arguments.insert(arguments.begin(),
                       {"--tls-cert", tls_ / (who + ".crt"), "--tls-key", tls_ / (who + ".key")});
    }
    arguments.insert(arguments.begin(), {"--timeout", "5", "--tls-ca", tls_ / "ca.crt"});
    const auto sbctl = Sbctl(std::move(arguments));
    const int code = sbctl->Wait();
    return {code, sbctl->Output()};
  }

  // A worker that registers its job and then waits for its peer.
  std::unique_ptr<ChildProcess> StartTrainer(const std::string& ns) {
    return std::make_unique<ChildProcess>(std::vector<std::string>{Program("sparsebalance-worker"),
                                                                   "profile",
                                                                   "--namespace",
                                                                   ns,
                                                                   "--seconds",
                                                                   "0.05",
                                                                   "--hidden-size",
                                                                   "32",
                                                                   "--layers",
                                                                   "1",
                                                                   "--heads",
                                                                   "2",
                                                                   "--kv-heads",
                                                                   "1",
                                                                   "--intermediate-size",
                                                                   "32",
                                                                   "--vocabulary-size",
                                                                   "16",
                                                                   "--longest-tokens",
                                                                   "256",
                                                                   "--profile-output",
                                                                   folder_ / "profile.json",
                                                                   "--coordinator",
                                                                   address(),
                                                                   "--tls-ca",
                                                                   tls_ / "ca.crt",
                                                                   "--tls-cert",
                                                                   tls_ / "trainer.crt",
                                                                   "--tls-key",
                                                                   tls_ / "trainer.key"});
  }

  const security::TestCa ca_{"SparseBalance test"};
  security::TestTlsFolder tls_;
};

TEST_F(SecureProgramTest, EachRoleMayDoItsOwnAndNothingElse) {
  const auto program = StartSecure();
  EXPECT_EQ(As("reader", {"jobs"}).output, "no jobs");
  EXPECT_EQ(As("operator", {"backup", folder_ / "state"}).code, 0);
  const Ran reader = As("reader", {"backup", folder_ / "stolen"});
  EXPECT_EQ(reader.code, 1);
  EXPECT_THAT(reader.output, AllOf(HasSubstr("grafana.example.org"), HasSubstr("ExportState"),
                                   HasSubstr("operator")));
  const Ran trainer = As("trainer", {"drain"});
  EXPECT_EQ(trainer.code, 1);
  EXPECT_THAT(trainer.output, HasSubstr("Drain"));
  EXPECT_EQ(As("trainer", {"job", "ml/none"}).code, 1);
  EXPECT_THAT(As("trainer", {"job", "ml/none"}).output, HasSubstr("not known"));
  EXPECT_THAT(As("trainer", {"job", "vision/none"}).output,
              AllOf(HasSubstr("namespace 'vision'"), Not(HasSubstr("not known"))));
  EXPECT_EQ(As("operator", {"drain"}).code, 0);
  EXPECT_EQ(program->Wait(), 0) << program->Output();
}

TEST_F(SecureProgramTest, WhoShowsNoCertificateOfTheCaIsNotLetIn) {
  const auto program = StartSecure();
  for (const char* who : {"", "stranger"}) {
    const Ran ran = As(who, {"jobs"});
    EXPECT_EQ(ran.code, 1) << who;
    EXPECT_THAT(ran.output, HasSubstr("cannot be reached")) << who;
  }
  EXPECT_THAT(As("expired", {"jobs"}).output, HasSubstr("expired"));
  // In plaintext there is nobody to talk to either.
  const auto plain = Sbctl({"--timeout", "2", "jobs"});
  EXPECT_EQ(plain->Wait(), 1);
  EXPECT_EQ(As("reader", {"jobs"}).code, 0) << "and it goes on serving the others";
  program->Signal(SIGTERM);
  EXPECT_EQ(program->Wait(), 0);
  EXPECT_THAT(program->Output(), Not(HasSubstr("PRIVATE KEY")));
}

TEST_F(SecureProgramTest, MetricsAreForReadersAndProbesNeedNoCertificate) {
  const auto program = StartSecure();
  const auto get = [&](const std::string& who, const char* path) {
    httplib::SSLClient client("127.0.0.1", metrics_port_, who.empty() ? "" : tls_ / (who + ".crt"),
                              who.empty() ? "" : tls_ / (who + ".key"));
    client.set_ca_cert_path((tls_ / "ca.crt").c_str());
    client.enable_server_certificate_verification(true);
    const httplib::Result result = client.Get(path);
    return result ? result->status : 0;
  };
  EXPECT_EQ(get("reader", "/metrics"), 200);
  EXPECT_EQ(get("trainer", "/metrics"), 403);
  for (const char* path : {"/", "/page.js", "/api/v1/jobs", "/overview.txt"}) {
    EXPECT_EQ(get("reader", path), 200) << path;
    EXPECT_EQ(get("trainer", path), 403) << path;
  }
  EXPECT_EQ(get("trainer", "/healthz"), 200);
  EXPECT_EQ(get("", "/metrics"), 0);
  testing_support::TestClient probe(absl::StrCat("127.0.0.1:", health_port_));
  EXPECT_EQ(probe.Raw("/grpc.health.v1.Health/Check", ""), "\x08\x01");
  EXPECT_EQ(probe.Raw("/sparsebalance.v1.Coordinator/ListJobs", ""), "no answer");
}

TEST_F(SecureProgramTest, AWorkerWithACertificateIsServedInItsOwnNamespace) {
  const auto program = StartSecure();
  const auto mine = StartTrainer("ml");
  EXPECT_EQ(mine->Wait(), 0) << mine->Output();
  EXPECT_THAT(mine->Output(), HasSubstr("given to the coordinator"));
}

TEST_F(SecureProgramTest, RulesThatCannotBeReadAreToldOnceAndTheOldOnesHold) {
  const auto program = StartSecure();
  tls_.Write("rules.json", R"({"rules": [{"san": "dns:x", "role": "king"}]})");
  program->Signal(SIGHUP);
  ASSERT_TRUE(program->WaitForLine("rules.json").has_value()) << program->Output();
  EXPECT_EQ(As("reader", {"jobs"}).code, 0);
  tls_.Write("rules.json",
             R"({"rules": [{"san": "dns:x", "role": "reader", "namespaces": ["*"]}]})");
  program->Signal(SIGHUP);
  ASSERT_TRUE(program->WaitForLine("SIGHUP: certificates and rules were read again").has_value());
  EXPECT_EQ(As("reader", {"jobs"}).code, 1);
}

}  // namespace
}  // namespace sparsebalance
