// What every store does, whichever it is.
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd/etcd_claims.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "coordinator/store/etcd/etcd_store.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::EtcdCluster;

// A store that can be closed and opened again.
class StoreUnderTest {
 public:
  virtual ~StoreUnderTest() = default;
  virtual Store& Open() = 0;  // again, where it was open
  // Whatever it takes before the job's writes are accepted.
  virtual void Own(const JobId& id) {}
};

class MemoryUnderTest : public StoreUnderTest {
 public:
  Store& Open() override { return store_; }

 private:
  MemoryStore store_;
};

class SqliteUnderTest : public StoreUnderTest {
 public:
  SqliteUnderTest() {
    std::string pattern = (fs::temp_directory_path() / "sb-contract-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~SqliteUnderTest() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  Store& Open() override {
    store_.reset();
    auto opened = SqliteStore::Open((folder_ / "store.db").string(), absl::UnixEpoch());
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(opened->store);
    return *store_;
  }

 private:
  fs::path folder_;
  std::unique_ptr<Store> store_;
};

class EtcdUnderTest : public StoreUnderTest {
 public:
  explicit EtcdUnderTest(const EtcdCluster& cluster)
      : client_(cluster.Client()), prefix_(absl::StrCat("/contract/", ++count_)) {}

  Store& Open() override {
    store_.reset();
    if (claims_ != nullptr) {
      EXPECT_TRUE(claims_->ReleaseAll().ok());
    }
    auto claims = EtcdClaims::Start(
        client_.get(),
        {.prefix = prefix_, .address = "here:1", .lease = {.ttl = absl::Minutes(2)}});
    EXPECT_TRUE(claims.ok()) << claims.status();
    claims_ = *std::move(claims);
    for (const JobId& id : owned_) Claim(id);
    auto store = EtcdStore::Open(client_.get(), claims_.get(), {.prefix = prefix_});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    return *store_;
  }
  void Own(const JobId& id) override {
    owned_.push_back(id);
    Claim(id);
  }

 private:
  void Claim(const JobId& id) {
    const auto epoch = claims_->Claim(id, 0);
    EXPECT_TRUE(epoch.ok()) << epoch.status();
  }

  static int count_;
  std::unique_ptr<EtcdClient> client_;
  const std::string prefix_;
  std::vector<JobId> owned_;
  std::unique_ptr<EtcdClaims> claims_;
  std::unique_ptr<Store> store_;
};
int EtcdUnderTest::count_ = 0;

const JobId kJob{"default", "job"};

v1::JobSpec Spec(uint32_t layers, const JobId& id = kJob) {
  v1::JobSpec spec;
  *spec.mutable_job() = id.ToProto();
  spec.set_num_layers(layers);
  return spec;
}

v1::ConsumedBatch Consumed(uint64_t step, uint64_t epoch) {
  v1::ConsumedBatch batch;
  batch.set_step(step);
  batch.set_epoch(epoch);
  batch.add_sequence_ids(step * 10);
  return batch;
}

v1::LatencyProfile Profile(const std::string& device_class, const std::string& source) {
  v1::LatencyProfile profile;
  profile.mutable_key()->set_namespace_("default");
  profile.mutable_key()->set_device_class(device_class);
  profile.mutable_key()->set_model_class("tiny");
  profile.set_source(source);
  return profile;
}

// Everything that a store can hold, for one job.
std::vector<StoreWrite> Everything() {
  return {StoreJob{{kJob, Spec(2), 3, false}},
          StoreProfile{Profile("cpu", "measured")},
          StoreCoverage{kJob, {{0, "zero"}, {7, std::string("se\0ven", 6)}}},
          StoreLatencyState{kJob, "latency"},
          StoreConsumed{kJob, Consumed(0, 0)},
          StoreConsumed{kJob, Consumed(1, 1)},
          StoreConsumed{kJob, Consumed(2, 1)}};
}

void ExpectEverything(Store& store) {
  const auto jobs = store.LoadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_THAT(*jobs, SizeIs(1));
  EXPECT_EQ(jobs->front().id, kJob);
  EXPECT_EQ(jobs->front().generation, 3u);
  EXPECT_FALSE(jobs->front().finished);
  EXPECT_EQ(jobs->front().spec.num_layers(), 2u);
  ASSERT_THAT(*store.LoadProfiles(), SizeIs(1));
  EXPECT_EQ(store.LoadProfiles()->front().source(), "measured");
  const auto coverage = store.LoadCoverage(kJob);
  ASSERT_THAT(*coverage, SizeIs(2));
  EXPECT_EQ(coverage->front().bytes, "zero");
  EXPECT_EQ(coverage->back().index, 7u);
  EXPECT_EQ(coverage->back().bytes, std::string("se\0ven", 6));
  EXPECT_EQ(*store.LoadLatencyState(kJob), "latency");
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(3));
}

std::vector<uint64_t> Steps(Store& store, const JobId& id = kJob) {
  std::vector<uint64_t> steps;
  const auto batches = store.LoadConsumed(id);
  EXPECT_TRUE(batches.ok()) << batches.status();
  for (const v1::ConsumedBatch& batch : *batches) steps.push_back(batch.step());
  return steps;
}

std::vector<JobId> Ids(Store& store) {
  std::vector<JobId> ids;
  const auto jobs = store.LoadJobs();
  EXPECT_TRUE(jobs.ok()) << jobs.status();
  for (const StoredJob& job : *jobs) ids.push_back(job.id);
  return ids;
}

class StoreContract : public testing::TestWithParam<std::string> {
 protected:
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    if (GetParam() == "Memory") {
      under_test_ = std::make_unique<MemoryUnderTest>();
    } else if (GetParam() == "Sqlite") {
      under_test_ = std::make_unique<SqliteUnderTest>();
    } else {
      SPARSEBALANCE_SKIP_WITHOUT_ETCD();
      if (cluster_ == nullptr) cluster_ = std::make_unique<EtcdCluster>(EtcdCluster::Options{});
      under_test_ = std::make_unique<EtcdUnderTest>(*cluster_);
    }
    store_ = &under_test_->Open();
    under_test_->Own(kJob);
  }

  void Apply(std::vector<StoreWrite> writes) {
    const absl::Status status = store_->Apply(writes);
    ASSERT_TRUE(status.ok()) << status;
  }

  static std::unique_ptr<EtcdCluster> cluster_;  // one for all tests, each under its own prefix
  std::unique_ptr<StoreUnderTest> under_test_;
  Store* store_ = nullptr;
};
std::unique_ptr<EtcdCluster> StoreContract::cluster_;

TEST_P(StoreContract, HoldsEverythingOverARestart) {
  Apply(Everything());
  ExpectEverything(*store_);
  ExpectEverything(under_test_->Open());
}

TEST_P(StoreContract, HasNothingOfAJobThatWasNeverStored) {
  EXPECT_THAT(*store_->LoadJobs(), IsEmpty());
  EXPECT_FALSE(store_->LoadJob(kJob)->has_value());
  EXPECT_THAT(*store_->LoadProfiles(), IsEmpty());
  EXPECT_THAT(*store_->LoadCoverage(kJob), IsEmpty());
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "");
  EXPECT_THAT(*store_->LoadConsumed(kJob), IsEmpty());
}

TEST_P(StoreContract, DoesWhatEveryWriteSays) {
  Apply(Everything());
  Apply({PruneConsumed{kJob, 1}});
  EXPECT_THAT(Steps(*store_), ElementsAre(1, 2));
  Apply({CutConsumed{kJob, 2}});
  EXPECT_THAT(Steps(*store_), ElementsAre(1));
  EXPECT_EQ(store_->LoadConsumed(kJob)->front().sequence_ids(0), 10u);
  Apply({StoreConsumed{kJob, Consumed(1, 2)}});
  EXPECT_EQ(store_->LoadConsumed(kJob)->front().epoch(), 2u);
  Apply({StoreLatencyState{kJob, ""}});
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "");
  Apply({StoreJob{{kJob, Spec(5), 4, true}}});
  EXPECT_EQ(store_->LoadJobs()->front().spec.num_layers(), 5u);
  EXPECT_TRUE(store_->LoadJobs()->front().finished);
  ASSERT_TRUE(store_->LoadJob(kJob)->has_value());
  EXPECT_EQ((*store_->LoadJob(kJob))->spec.num_layers(), 5u);
  const JobId shorter{kJob.ns, kJob.name.substr(0, kJob.name.size() - 1)};
  EXPECT_FALSE(store_->LoadJob(shorter)->has_value()) << "it only begins like a stored one";
  EXPECT_THAT(*store_->LoadCoverage(kJob), SizeIs(2));
  Apply({StoreProfile{Profile("cpu", "assumed")}, StoreProfile{Profile("a100", "measured")}});
  ASSERT_THAT(*store_->LoadProfiles(), SizeIs(2));
  EXPECT_EQ(store_->LoadProfiles()->front().key().device_class(), "a100");
  EXPECT_EQ(store_->LoadProfiles()->back().source(), "assumed");
  Apply({RemoveCoverage{kJob}});
  EXPECT_THAT(*store_->LoadCoverage(kJob), IsEmpty());
  Apply({RemoveJob{kJob}});
  EXPECT_THAT(*store_->LoadJobs(), IsEmpty());
  EXPECT_THAT(*store_->LoadConsumed(kJob), IsEmpty());
  EXPECT_THAT(*store_->LoadProfiles(), SizeIs(2));
}

TEST_P(StoreContract, AppliesWritesInTheirOrder) {
  Apply({StoreConsumed{kJob, Consumed(5, 0)}, StoreConsumed{kJob, Consumed(6, 0)},
         CutConsumed{kJob, 5}, StoreConsumed{kJob, Consumed(5, 1)},
         StoreConsumed{kJob, Consumed(5, 2)}, StoreConsumed{kJob, Consumed(4, 0)},
         PruneConsumed{kJob, 1}, StoreConsumed{kJob, Consumed(3, 0)}});
  EXPECT_THAT(Steps(*store_), ElementsAre(3, 5));
  EXPECT_EQ(store_->LoadConsumed(kJob)->back().epoch(), 2u);
  Apply({StoreLatencyState{kJob, "old"}, StoreCoverage{kJob, {{1, "old"}}}, RemoveJob{kJob},
         StoreJob{{kJob, Spec(7), 9, false}}, StoreLatencyState{kJob, "new"}});
  EXPECT_THAT(Ids(*store_), ElementsAre(kJob));
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "new");
  EXPECT_THAT(*store_->LoadCoverage(kJob), IsEmpty());
  EXPECT_THAT(Steps(*store_), IsEmpty());
}

TEST_P(StoreContract, ComesToTheSameWhenWritesAreAppliedAgain) {
  std::vector<StoreWrite> writes = Everything();
  writes.insert(writes.begin(), RemoveJob{kJob});
  writes.push_back(CutConsumed{kJob, 1});
  writes.push_back(StoreConsumed{kJob, Consumed(1, 4)});
  writes.push_back(PruneConsumed{kJob, 2});
  for (int i = 0; i < 2; ++i) {
    Apply(writes);
    EXPECT_THAT(Ids(*store_), ElementsAre(kJob));
    EXPECT_THAT(Steps(*store_), ElementsAre(1));
    EXPECT_THAT(*store_->LoadCoverage(kJob), SizeIs(2));
  }
}

TEST_P(StoreContract, KeepsJobsApartWhateverTheirNames) {
  const std::vector<JobId> ids = {
      {"a", "b/c"},
      {"a", "b"},
      {"a", "b%2fc"},
      {"a", "bb"},
      {"a", "b/"},
      {"a/b", "c"},
      {"a b", "c\\d"},
      {"a", "\xc3\xa9t\xc3\xa9"},
      {"a", "%"},
      {"a%2fb", "c"},
      {"a-", "b"},
      {"A", "b"},
      {"a", "latency"},
      {"coverage", "b"},
      {"a", ".."},
      {"a", "b0"},
      {"a", std::string("b\0c", 3)},
  };
  std::vector<StoreWrite> writes;
  for (const JobId& id : ids) {
    under_test_->Own(id);
    writes.push_back(StoreJob{{id, Spec(1, id), 1, false}});
    writes.push_back(StoreLatencyState{id, id.ToString()});
    writes.push_back(StoreCoverage{id, {{3, id.ToString()}}});
    writes.push_back(StoreConsumed{id, Consumed(8, 0)});
  }
  Apply(writes);
  std::vector<JobId> left = ids;
  std::sort(left.begin(), left.end());
  EXPECT_EQ(Ids(*store_), left);
  while (!left.empty()) {
    Apply({RemoveJob{left.back()}});
    left.pop_back();
    EXPECT_EQ(Ids(*store_), left);
    for (const JobId& id : left) {
      EXPECT_EQ(*store_->LoadLatencyState(id), id.ToString());
      ASSERT_THAT(*store_->LoadCoverage(id), SizeIs(1));
      EXPECT_EQ(store_->LoadCoverage(id)->front().bytes, id.ToString());
      EXPECT_THAT(Steps(*store_, id), ElementsAre(8));
    }
  }
}

TEST_P(StoreContract, KeepsNumbersInTheirOrder) {
  const std::vector<uint64_t> steps = {0, 9, 10, 255, 256, uint64_t{1} << 32, uint64_t{1} << 62};
  std::vector<StoreWrite> writes;
  for (const uint64_t step : steps) writes.push_back(StoreConsumed{kJob, Consumed(step, 0)});
  writes.push_back(StoreCoverage{kJob, {{10, "ten"}, {9, "nine"}}});
  Apply(writes);
  EXPECT_EQ(Steps(*store_), steps);
  EXPECT_EQ(store_->LoadCoverage(kJob)->front().bytes, "nine");
  Apply({CutConsumed{kJob, 256}});
  EXPECT_THAT(Steps(*store_), ElementsAre(0, 9, 10, 255));
}

TEST_P(StoreContract, HoldsValuesOfManyMegabytesAndForgetsThem) {
  // Larger than anything that etcd takes in one request, and not a multiple of anything.
  std::string big(5'000'011, 'x');
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<char>(i * 31 >> 3);
  const std::string other(2'000'000, 'o');
  v1::ConsumedBatch batch = Consumed(1, 0);
  for (uint64_t i = 0; i < 400'000; ++i) batch.add_sequence_ids(uint64_t{1} << 40 | i);
  v1::LatencyProfile profile = Profile("cpu", other);
  Apply({StoreLatencyState{kJob, big}, StoreCoverage{kJob, {{0, other}, {1, "small"}, {2, big}}},
         StoreConsumed{kJob, batch}, StoreProfile{profile}});
  EXPECT_EQ(*store_->LoadLatencyState(kJob), big);
  ASSERT_THAT(*store_->LoadCoverage(kJob), SizeIs(3));
  EXPECT_EQ(store_->LoadCoverage(kJob)->at(0).bytes, other);
  EXPECT_EQ(store_->LoadCoverage(kJob)->at(1).bytes, "small");
  EXPECT_EQ(store_->LoadCoverage(kJob)->at(2).bytes, big);
  EXPECT_EQ(store_->LoadConsumed(kJob)->front().SerializeAsString(), batch.SerializeAsString());
  EXPECT_EQ(store_->LoadProfiles()->front().source(), other);
  Apply({StoreLatencyState{kJob, other}, StoreCoverage{kJob, {{1, big}, {2, "little"}}},
         StoreProfile{Profile("cpu", "little")}});
  EXPECT_EQ(*store_->LoadLatencyState(kJob), other);
  EXPECT_EQ(store_->LoadCoverage(kJob)->at(1).bytes, big);
  EXPECT_EQ(store_->LoadCoverage(kJob)->at(2).bytes, "little");
  EXPECT_EQ(store_->LoadProfiles()->front().source(), "little");
  Apply({PruneConsumed{kJob, 1}, RemoveCoverage{kJob}, StoreLatencyState{kJob, ""}});
  EXPECT_THAT(Steps(*store_), IsEmpty());
  EXPECT_THAT(*store_->LoadCoverage(kJob), IsEmpty());
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "");
}

TEST_P(StoreContract, TakesMoreWritesThanATransactionHolds) {
  constexpr uint64_t kSteps = 1000;
  std::vector<StoreWrite> writes;
  StoreCoverage coverage{kJob, {}};
  for (uint64_t step = 0; step < kSteps; ++step) {
    writes.push_back(StoreConsumed{kJob, Consumed(step, step % 3)});
    coverage.chunks.push_back({step, absl::StrCat("chunk ", step)});
  }
  writes.push_back(coverage);
  Apply(writes);
  EXPECT_THAT(Steps(*store_), SizeIs(kSteps));
  EXPECT_THAT(*store_->LoadCoverage(kJob), SizeIs(kSteps));
  // Every third one stays, so that no two of those that go are neighbours of their like only.
  Apply({PruneConsumed{kJob, 2}});
  const std::vector<uint64_t> left = Steps(*store_);
  ASSERT_THAT(left, SizeIs(kSteps / 3));
  for (size_t i = 0; i < left.size(); ++i) EXPECT_EQ(left[i], 3 * i + 2);
}

TEST_P(StoreContract, RaisesTheLeaderEpochWithEveryStartAndAboveWhatClientsReport) {
  const auto first = store_->RaiseLeaderEpoch(0);
  ASSERT_TRUE(first.ok()) << first.status();
  Store& again = under_test_->Open();
  const auto second = again.RaiseLeaderEpoch(0);
  EXPECT_GT(*second, *first);
  const auto third = again.RaiseLeaderEpoch(*second + 1'000'000);
  EXPECT_GT(*third, *second + 1'000'000);
  EXPECT_GT(*under_test_->Open().RaiseLeaderEpoch(5), *third);
}

INSTANTIATE_TEST_SUITE_P(Of, StoreContract, testing::Values("Memory", "Sqlite", "Etcd"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace sparsebalance
