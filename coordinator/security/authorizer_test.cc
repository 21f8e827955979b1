// Who may call what, what is said about denials, and rules that change while they are in force.

#include "coordinator/security/authorizer.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "coordinator/security/call_authorizer.h"
#include "coordinator/security/log_capture.h"
#include "coordinator/security/policy_reloader.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kRules[] = R"({"rules": [
  {"san": "spiffe://c/ns/{namespace}/sa/trainer", "role": "node"},
  {"san": "dns:grafana", "role": "reader", "namespaces": ["ml"]},
  {"san": "dns:prometheus", "role": "reader", "namespaces": ["*"]},
  {"san": "dns:ops", "role": "operator", "namespaces": ["*"]},
  {"san": "dns:ml-lead", "role": "operator", "namespaces": ["ml", "default"]}
]})";

const PeerIdentity kNode = {{"spiffe://c/ns/ml/sa/trainer"}, {}};
const PeerIdentity kReader = {{}, {"grafana"}};
const PeerIdentity kScraper = {{}, {"prometheus"}};
const PeerIdentity kOperator = {{}, {"ops"}};
const PeerIdentity kLead = {{}, {"ml-lead"}};
const PeerIdentity kStranger = {{}, {"stranger"}};
const PeerIdentity kNobody = {};

Policy Rules() {
  auto policy = Policy::Parse(kRules, "auth.json");
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

class AuthorizerTest : public testing::Test {
 protected:
  AuthorizerTest() {
    Authorizer::Options options;
    options.now = [this] { return now_; };
    options.on_denial = [this](Method method) { denied_.push_back(method); };
    options.logged_denials = 4;
    authorizer_ = std::make_unique<Authorizer>(Rules(), options);
  }

  absl::StatusCode Check(const PeerIdentity& identity, Method method, const std::string& ns) {
    return authorizer_->Check(identity, method, ns).code();
  }

  LogCapture log_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::vector<Method> denied_;
  std::unique_ptr<Authorizer> authorizer_;
};

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

TEST(RpcAccess, EveryRpcOfTheServiceIsInTheTable) {
  const auto* const service = v1::RegisterJobRequest::descriptor()->file()->service(0);
  ASSERT_EQ(service->name(), "Coordinator");
  // All rows but the status page.
  ASSERT_EQ(static_cast<size_t>(service->method_count()) + 1, kAccess.size());
  for (int i = 0; i < service->method_count(); ++i) {
    EXPECT_EQ(service->method(i)->name(), kAccess[static_cast<size_t>(i)].name);
  }
}

TEST(RpcAccess, NamespacesAreFoundInEveryRequest) {
  v1::RegisterJobRequest register_job;
  register_job.mutable_spec()->mutable_job()->set_namespace_("ml");
  EXPECT_EQ(TargetOf(register_job).name_space, "ml");
  v1::JoinJobRequest join;
  join.mutable_job()->set_namespace_("ml");
  EXPECT_EQ(TargetOf(join).name_space, "ml");
  v1::ExchangeStepRequest exchange;
  exchange.mutable_node()->mutable_job()->set_namespace_("ml");
  EXPECT_EQ(TargetOf(exchange).name_space, "ml");
  v1::ListJobsRequest list;
  list.set_namespace_("ml");
  EXPECT_EQ(TargetOf(list).name_space, "ml");
  EXPECT_EQ(TargetOf(v1::PutProfileRequest()).name_space, "");
}

TEST_F(AuthorizerTest, ANodeTrainsInItsOwnNamespaceOnly) {
  for (const Method method :
       {Method::kRegisterJob, Method::kJoinJob, Method::kExchangeStep, Method::kHeartbeat,
        Method::kLeaveJob, Method::kPutCoverage, Method::kListJobs, Method::kGetJob,
        Method::kGetPlan, Method::kWatchJob}) {
    EXPECT_EQ(Check(kNode, method, "ml"), kOk) << AccessOf(method).name;
    EXPECT_EQ(Check(kNode, method, "vision"), kDenied) << AccessOf(method).name;
  }
  // Profiles belong to all.
  EXPECT_EQ(Check(kNode, Method::kPutProfile, ""), kOk);
  EXPECT_EQ(Check(kNode, Method::kGetProfile, ""), kOk);
  EXPECT_EQ(Check(kNode, Method::kStatusPage, ""), kDenied);
}

TEST_F(AuthorizerTest, AReaderChangesNothing) {
  for (const Method method : {Method::kListJobs, Method::kGetJob, Method::kGetPlan,
                              Method::kWatchJob, Method::kGetProfile}) {
    EXPECT_EQ(Check(kReader, method, "ml"), kOk) << AccessOf(method).name;
  }
  for (const Method method :
       {Method::kRegisterJob, Method::kJoinJob, Method::kExchangeStep, Method::kHeartbeat,
        Method::kLeaveJob, Method::kPutCoverage, Method::kPutProfile}) {
    EXPECT_EQ(Check(kReader, method, "ml"), kDenied) << AccessOf(method).name;
  }
}

TEST_F(AuthorizerTest, AnOperatorMayDoEverythingWhereItIsOne) {
  for (const Access& access : kAccess) {
    EXPECT_EQ(Check(kOperator, access.method, "any"), kOk) << access.name;
  }
  EXPECT_EQ(Check(kLead, Method::kRegisterJob, "ml"), kOk);
  EXPECT_EQ(Check(kLead, Method::kRegisterJob, "vision"), kDenied);
  EXPECT_EQ(Check(kLead, Method::kStatusPage, ""), kDenied);
}

TEST_F(AuthorizerTest, AnEmptyNamespaceReadsAsDefault) {
  EXPECT_EQ(Check(kLead, Method::kJoinJob, ""), kOk);
  EXPECT_EQ(Check(kNode, Method::kJoinJob, ""), kDenied);
}

TEST_F(AuthorizerTest, PagesThatShowEverythingNeedAReaderOfEverything) {
  EXPECT_EQ(Check(kScraper, Method::kStatusPage, ""), kOk);
  EXPECT_EQ(Check(kReader, Method::kStatusPage, ""), kDenied);
}

TEST_F(AuthorizerTest, AListingShowsWhatMayBeSeen) {
  EXPECT_EQ(Check(kReader, Method::kListJobs, ""), kOk);
  EXPECT_EQ(Check(kReader, Method::kListJobs, "vision"), kDenied);
  EXPECT_EQ(Check(kStranger, Method::kListJobs, ""), kDenied);
  const NamespaceView view = authorizer_->VisibleNamespaces(kReader);
  EXPECT_TRUE(view.Contains("ml"));
  EXPECT_FALSE(view.Contains("vision"));
  EXPECT_TRUE(authorizer_->VisibleNamespaces(kScraper).Contains("anything"));
  EXPECT_TRUE(authorizer_->VisibleNamespaces(kStranger).empty());
}

TEST_F(AuthorizerTest, ErrorsSayWhoAskedForWhatAndWhatWouldAllowIt) {
  const absl::Status status = authorizer_->Check(kReader, Method::kRegisterJob, "ml");
  EXPECT_EQ(status.code(), kDenied);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("dns:grafana may not call RegisterJob in namespace 'ml'"),
                    HasSubstr("node, or operator"), HasSubstr("authorization file")));
  const absl::Status nobody = authorizer_->Check(kNobody, Method::kGetJob, "ml");
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("GetJob needs a client certificate"));
}

TEST_F(AuthorizerTest, ADenialIsLoggedOnceAMinuteAndCountedEachTime) {
  for (int i = 0; i < 100; ++i) {
    authorizer_->Check(kStranger, Method::kGetJob, "ml", [] { return "ipv4:10.0.0.1:5"; })
        .IgnoreError();
  }
  EXPECT_EQ(denied_.size(), 100u);
  EXPECT_EQ(log_.Count("dns:stranger may not call GetJob"), 1u);
  EXPECT_EQ(log_.Count("denied to ipv4:10.0.0.1:5"), 1u);
  now_ += absl::Seconds(61);
  EXPECT_EQ(Check(kStranger, Method::kGetJob, "ml"), kDenied);
  EXPECT_EQ(log_.Count("(and 99 times since the last line)"), 1u);
  // Another call is another line.
  EXPECT_EQ(Check(kStranger, Method::kGetPlan, "ml"), kDenied);
  EXPECT_EQ(log_.Count("warning"), 3u);
}

TEST_F(AuthorizerTest, ManyDifferentDenialsNeitherFillTheLogNorTheMemory) {
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(Check(kStranger, Method::kGetJob, "ns" + std::to_string(i)), kDenied);
  }
  // Four are remembered; all further ones share a line.
  EXPECT_EQ(log_.Count("warning"), 5u);
  now_ += absl::Seconds(61);
  EXPECT_EQ(Check(kStranger, Method::kGetJob, "later"), kDenied);
  EXPECT_EQ(log_.Count("'later'"), 1u);
}

TEST_F(AuthorizerTest, WhatACallerSendsCannotWriteLinesOfTheLog) {
  EXPECT_EQ(Check(kStranger, Method::kGetJob, "ml\nerror the store is lost"), kDenied);
  EXPECT_EQ(log_.Count("ml\\nerror the store is lost"), 1u);
  EXPECT_EQ(log_.Count("warning"), 1u);
}

TEST_F(AuthorizerTest, ReplacedRulesCountFromTheNextCallOn) {
  EXPECT_EQ(Check(kReader, Method::kGetJob, "ml"), kOk);
  auto fewer = Policy::Parse(
      R"({"rules": [{"san": "dns:ops", "role": "operator", "namespaces": ["*"]}]})", "auth.json");
  ASSERT_TRUE(fewer.ok()) << fewer.status();
  authorizer_->Replace(*std::move(fewer));
  EXPECT_EQ(Check(kReader, Method::kGetJob, "ml"), kDenied);
  EXPECT_EQ(Check(kOperator, Method::kGetJob, "ml"), kOk);
}

TEST(CallAuthorizer, WithoutAnAuthorizerEveryoneMayDoEverything) {
  const CallAuthorizer open(nullptr);
  EXPECT_TRUE(open.VisibleNamespaces({}).every);
}

TEST(PolicyReloader, FollowsItsFileAndKeepsTheOldRulesWhereANewOneIsWrong) {
  LogCapture log;
  std::string path = (std::filesystem::temp_directory_path() / "sb-auth-XXXXXX").string();
  const int fd = mkstemp(path.data());
  ASSERT_GE(fd, 0);
  close(fd);
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write(kRules);
  auto reloader = PolicyReloader::Start(path, {}, absl::Hours(1));
  ASSERT_TRUE(reloader.ok()) << reloader.status();
  Authorizer& authorizer = *(*reloader)->authorizer();
  EXPECT_TRUE(authorizer.Check(kReader, Method::kGetJob, "ml").ok());

  write(R"({"rules": [{"san": "dns:grafana", "role": "raeder", "namespaces": ["ml"]}]})");
  for (int i = 0; i < 4; ++i) (*reloader)->CheckNow();
  EXPECT_TRUE(authorizer.Check(kReader, Method::kGetJob, "ml").ok());
  EXPECT_EQ((*reloader)->failures(), 1u);
  EXPECT_EQ(log.Count("'raeder' is no role"), 1u);

  write(R"({"rules": [{"san": "dns:grafana", "role": "reader", "namespaces": ["vision"]}]})");
  for (int i = 0; i < 2; ++i) (*reloader)->CheckNow();
  EXPECT_EQ((*reloader)->reloads(), 1u);
  EXPECT_FALSE(authorizer.Check(kReader, Method::kGetJob, "ml").ok());
  EXPECT_TRUE(authorizer.Check(kReader, Method::kGetJob, "vision").ok());
  std::filesystem::remove(path);
}

TEST(PolicyReloader, DoesNotStartWithoutAGoodFile) {
  EXPECT_EQ(PolicyReloader::Start("/nowhere/auth.json", {}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sparsebalance::security
