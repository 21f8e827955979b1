#include "coordinator/store/etcd/etcd_client.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "coordinator/store/etcd/etcd_keys.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/etcd/etcd_watcher.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::EtcdCluster;

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

absl::StatusOr<etcdserverpb::TxnResponse> Do(EtcdClient& client, etcdserverpb::RequestOp op) {
  etcdserverpb::TxnRequest txn;
  *txn.add_success() = std::move(op);
  return client.Txn(txn);
}

class EtcdClientTest : public testing::Test {
 protected:
  void SetUp() override { SPARSEBALANCE_SKIP_WITHOUT_ETCD(); }
};

TEST(EtcdKeysTest, NamesAreOnePartOfAPathAndComeBack) {
  for (const std::string& name :
       {std::string(""), std::string("plain-Name_1.0"), std::string("a/b"), std::string("%"),
        std::string("a%2fb"), std::string("\0\xff ", 3), std::string("..")}) {
    const std::string part = EscapePathPart(name);
    EXPECT_EQ(part.find('/'), std::string::npos) << part;
    EXPECT_EQ(UnescapePathPart(part), name) << part;
  }
  for (const char* part : {"a/b", "%", "%2", "%zz", "%2F", "%61", " "}) {
    EXPECT_FALSE(UnescapePathPart(part).has_value()) << part;
  }
}

TEST(EtcdChannelTest, EndpointsAndFilesThatCannotBeUsedAreRefused) {
  const auto refuse = [](const std::vector<std::string>& endpoints, const EtcdTlsFiles& tls) {
    EtcdClientOptions options;
    options.endpoints = endpoints;
    options.tls = tls;
    return EtcdClient::Create(options).status();
  };
  for (const std::string endpoint :
       {"", "host", "host:", ":2379", "host:0", "host:65536", "http://host:2379", "host:2379/x"}) {
    const absl::Status status = refuse({"10.0.0.1:2379", endpoint}, {});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << endpoint << ": " << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(refuse({}, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(refuse({"h:1"}, {.cert = "/dev/null"})));
  const absl::Status missing = refuse({"h:1"}, {.ca = "/no/such/ca.pem"});
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/no/such/ca.pem"));
}

TEST(EtcdClientOffline, ACallThatNobodyAnswersSaysWhatEachEndpointSaid) {
  EtcdClientOptions options;
  options.endpoints = {"127.0.0.1:1", "127.0.0.1:2"};
  options.call_timeout = absl::Milliseconds(300);
  const auto client = EtcdClient::Create(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status away = (*client)->ReadRange(EtcdRange::Key("x")).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_THAT(std::string(away.message()), HasSubstr("127.0.0.1:1: "));
  EXPECT_THAT(std::string(away.message()), HasSubstr("127.0.0.1:2: "));
}

TEST_F(EtcdClientTest, ReadsARangeOfManyPagesAsItWasAtOneMoment) {
  EtcdCluster cluster({});
  EtcdClientOptions options;
  options.endpoints = cluster.endpoints();
  options.page_keys = 7;
  const auto made = EtcdClient::Create(options);
  EtcdClient& client = **made;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Do(client, PutOp(absl::StrCat("k/", 100 + i), absl::StrCat(i))).ok());
  }
  ASSERT_TRUE(Do(client, PutOp("k0", "after")).ok());
  const auto before = client.ReadRange(EtcdRange::Prefix("k/"));
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_THAT(before->kvs, SizeIs(50));
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(before->kvs[static_cast<size_t>(i)].value(), absl::StrCat(i));
  ASSERT_TRUE(Do(client, DeleteOp(EtcdRange::Prefix("k/"))).ok());
  EXPECT_THAT(client.ReadRange(EtcdRange::Prefix("k/"))->kvs, IsEmpty());
  EXPECT_THAT(client.ReadRange(EtcdRange::Prefix("k/"), before->revision)->kvs, SizeIs(50));
  ASSERT_TRUE(client.Compact(before->revision + 1).ok());
  const absl::Status forgotten =
      client.ReadRange(EtcdRange::Prefix("k/"), before->revision).status();
  EXPECT_TRUE(absl::IsOutOfRange(forgotten)) << forgotten;
}

TEST_F(EtcdClientTest, AMemberSpeaksTlsWithThoseThatTrustIt) {
  EtcdCluster cluster({.tls = true});
  const auto client = cluster.Client();
  ASSERT_TRUE(Do(*client, PutOp("k", "v")).ok());
  EXPECT_EQ(client->ReadRange(EtcdRange::Key("k"))->kvs[0].value(), "v");
  const auto status = client->MemberStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(status->version(), HasSubstr("3."));
  EtcdClientOptions plain;
  plain.endpoints = cluster.endpoints();
  plain.call_timeout = absl::Seconds(1);
  EXPECT_TRUE(
      absl::IsUnavailable((*EtcdClient::Create(plain))->ReadRange(EtcdRange::Key("k")).status()));
}

TEST_F(EtcdClientTest, ALeaseIsKeptRevokedAndRunsOut) {
  EtcdCluster cluster({});
  const auto client = cluster.Client();
  const auto lease = client->LeaseGrant(absl::Seconds(1));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_GE(lease->ttl, absl::Seconds(1));  // etcd has a least time
  ASSERT_TRUE(Do(*client, PutOp("k", "v", lease->id)).ok());
  EXPECT_EQ(*client->LeaseKeepAlive(lease->id, absl::Seconds(10)), lease->ttl);
  EXPECT_LE(*client->LeaseTimeToLive(lease->id), lease->ttl);
  EXPECT_TRUE(Eventually([&] { return client->ReadRange(EtcdRange::Key("k"))->kvs.empty(); }));
  EXPECT_TRUE(absl::IsNotFound(client->LeaseKeepAlive(lease->id, absl::Seconds(10)).status()));
  EXPECT_TRUE(absl::IsNotFound(client->LeaseTimeToLive(lease->id).status()));
  EXPECT_TRUE(absl::IsNotFound(Do(*client, PutOp("k", "v", lease->id)).status()));
  EXPECT_TRUE(client->LeaseRevoke(lease->id).ok());

  const auto long_lease = client->LeaseGrant(absl::Seconds(1000));
  ASSERT_TRUE(Do(*client, PutOp("k", "v", long_lease->id)).ok());
  ASSERT_TRUE(client->LeaseRevoke(long_lease->id).ok());
  EXPECT_THAT(client->ReadRange(EtcdRange::Key("k"))->kvs, IsEmpty());
}

TEST_F(EtcdClientTest, CallsGoOnWhileAnyMajorityOfMembersWorks) {
  EtcdCluster cluster({.members = 3});
  const auto client = cluster.Client(absl::Seconds(9));
  int written = 0;
  for (size_t member = 0; member < 3; ++member) {
    for (const bool paused : {false, true}) {
      SCOPED_TRACE(absl::StrCat("member ", member, paused ? " stands still" : " is dead"));
      if (paused) {
        cluster.Pause(member);
      } else {
        cluster.Kill(member);
      }
      // The leader may be among them, and the others then have to choose another.
      EXPECT_TRUE(
          Eventually([&] { return Do(*client, PutOp(absl::StrCat("k/", written), "v")).ok(); }));
      ++written;
      EXPECT_THAT(client->ReadRange(EtcdRange::Prefix("k/"))->kvs, SizeIs(written));
      if (paused) {
        cluster.Resume(member);
      } else {
        cluster.Start(member);
      }
      ASSERT_TRUE(cluster.WaitUntilServing(member));
    }
  }
}

TEST_F(EtcdClientTest, AMemberThatIsCutOffFromTheOthersIsPassedOver) {
  EtcdCluster cluster({.members = 3});
  cluster.Pause(1);
  cluster.Pause(2);
  // Without the others it serves nothing, though it runs.
  const absl::Status cut_off =
      cluster.Client(absl::Seconds(2), {0})->ReadRange(EtcdRange::Key("k")).status();
  EXPECT_TRUE(absl::IsUnavailable(cut_off)) << cut_off;
  cluster.Resume(1);
  cluster.Resume(2);
  EXPECT_TRUE(cluster.WaitUntilServing());
}

// What a watcher has told, as "key=value" or "key gone", and "listed N" for each list.
class Diary {
 public:
  EtcdWatcher::Listener Listener() {
    return {[this](const EtcdSnapshot& snapshot) {
              absl::MutexLock lock(&mutex_);
              lines_.push_back(absl::StrCat("listed ", snapshot.kvs.size()));
            },
            [this](const std::vector<etcdserverpb::Event>& events) {
              absl::MutexLock lock(&mutex_);
              for (const auto& event : events) {
                lines_.push_back(event.type() == etcdserverpb::Event::PUT
                                     ? absl::StrCat(event.kv().key(), "=", event.kv().value())
                                     : absl::StrCat(event.kv().key(), " gone"));
              }
            }};
  }
  std::vector<std::string> lines() {
    absl::MutexLock lock(&mutex_);
    return lines_;
  }
  bool Ends(const std::string& line) {
    return Eventually([&] {
      absl::MutexLock lock(&mutex_);
      return !lines_.empty() && lines_.back() == line;
    });
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

// A member whose time always runs out within it: etcd then answers by the name of a Go error, if
// its answer comes before the caller's own deadline.
class OutOfTime : public etcdserverpb::KV::Service {
 public:
  explicit OutOfTime(std::string words) : words_(std::move(words)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse*) override {
    ++calls_;
    return grpc::Status(grpc::StatusCode::UNKNOWN, words_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int calls() const { return calls_; }

 private:
  const std::string words_;
  int port_ = 0;
  std::atomic<int> calls_{0};
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(EtcdClientTest, AMemberThatRunsOutOfTimeIsPassedOverInWhateverWords) {
  EtcdCluster cluster({});
  for (const char* words : {"context deadline exceeded", "context canceled"}) {
    OutOfTime member(words);
    EtcdClientOptions options;
    options.endpoints = {member.address()};
    options.call_timeout = absl::Seconds(1);
    const absl::Status alone =
        (*EtcdClient::Create(options))->ReadRange(EtcdRange::Key("k")).status();
    EXPECT_TRUE(absl::IsUnavailable(alone)) << alone;
    options.endpoints.push_back(cluster.endpoints()[0]);
    options.call_timeout = absl::Seconds(30);
    const absl::Status with_another =
        (*EtcdClient::Create(options))->ReadRange(EtcdRange::Key("k")).status();
    EXPECT_TRUE(with_another.ok()) << with_another;
    EXPECT_GT(member.calls(), 1);
  }
  OutOfTime member("what is this");
  EtcdClientOptions options;
  options.endpoints = {member.address()};
  const absl::Status other =
      (*EtcdClient::Create(options))->ReadRange(EtcdRange::Key("k")).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnknown) << other;
  EXPECT_EQ(member.calls(), 1) << "an answer is an answer";
}

TEST_F(EtcdClientTest, AWatcherTellsOfEverythingOnceOverRestarts) {
  EtcdCluster cluster({});
  const auto client = cluster.Client();
  ASSERT_TRUE(Do(*client, PutOp("w/a", "1")).ok());
  ASSERT_TRUE(Do(*client, PutOp("x", "not watched")).ok());
  Diary diary;
  EtcdWatcher watcher(client.get(), EtcdRange::Prefix("w/"), diary.Listener());
  ASSERT_TRUE(diary.Ends("listed 1"));
  ASSERT_TRUE(Do(*client, PutOp("w/b", "2")).ok());
  ASSERT_TRUE(diary.Ends("w/b=2"));
  cluster.Kill(0);
  cluster.Start(0);
  ASSERT_TRUE(cluster.WaitUntilServing());
  ASSERT_TRUE(Do(*client, PutOp("w/b", "3")).ok());
  ASSERT_TRUE(Do(*client, DeleteOp(EtcdRange::Key("w/a"))).ok());
  ASSERT_TRUE(diary.Ends("w/a gone"));
  EXPECT_THAT(diary.lines(), ElementsAre("listed 1", "w/b=2", "w/b=3", "w/a gone"));
  watcher.ListAgain();
  EXPECT_TRUE(diary.Ends("listed 1"));
}

TEST_F(EtcdClientTest, AWatcherListsAnewWhereEtcdHasForgottenWhatItMissed) {
  EtcdCluster cluster({});
  const auto client = cluster.Client();
  Diary diary;
  EtcdWatcher::Listener listener = diary.Listener();
  absl::Notification held_up;
  absl::Notification go_on;
  listener.changed = [&, changed = listener.changed](const auto& events) {
    changed(events);
    if (events[0].kv().value() != "wait") return;
    held_up.Notify();
    go_on.WaitForNotification();
  };
  EtcdWatcher watcher(client.get(), EtcdRange::Prefix("w/"), listener);
  ASSERT_TRUE(diary.Ends("listed 0"));
  ASSERT_TRUE(Do(*client, PutOp("w/a", "wait")).ok());
  held_up.WaitForNotification();
  // While it is busy its connection is lost, and what happens then is compacted.
  cluster.Kill(0);
  cluster.Start(0);
  ASSERT_TRUE(cluster.WaitUntilServing());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Do(*client, PutOp("w/b", absl::StrCat(i))).ok());
  ASSERT_TRUE(client->Compact(client->ReadRange(EtcdRange::Key("w/a"))->revision).ok());
  go_on.Notify();
  ASSERT_TRUE(diary.Ends("listed 2"));
  ASSERT_TRUE(Do(*client, PutOp("w/c", "later")).ok());
  EXPECT_TRUE(diary.Ends("w/c=later"));
  EXPECT_THAT(diary.lines(), ElementsAre("listed 0", "w/a=wait", "listed 2", "w/c=later"));
}

TEST_F(EtcdClientTest, AWatcherListsAnewWhereEtcdHasLostItsMemory) {
  EtcdCluster cluster({});
  const auto client = cluster.Client();
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(Do(*client, PutOp("w/a", absl::StrCat(i))).ok());
  Diary diary;
  EtcdWatcher watcher(client.get(), EtcdRange::Prefix("w/"), diary.Listener());
  ASSERT_TRUE(diary.Ends("listed 1"));
  cluster.Wipe();
  EXPECT_TRUE(diary.Ends("listed 0"));
  ASSERT_TRUE(Do(*client, PutOp("w/b", "new")).ok());
  EXPECT_TRUE(diary.Ends("w/b=new"));
}

TEST_F(EtcdClientTest, AWatchEndsWhenItIsStopped) {
  EtcdCluster cluster({});
  const auto client = cluster.Client();
  EtcdStopper stopper;
  std::thread stop([&] { stopper.Stop(); });
  const absl::Status status =
      client->Watch(EtcdRange::Prefix("w/"), 1, stopper, [](const auto&) { return true; });
  stop.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace sparsebalance
