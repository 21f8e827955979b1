#include "coordinator/store/sqlite_store.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/store_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const JobId kJob{"default", "job"};

v1::JobSpec Spec(uint32_t layers) {
  v1::JobSpec spec;
  *spec.mutable_job() = kJob.ToProto();
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

// Everything that a store can hold, for one job.
std::vector<StoreWrite> Everything() {
  v1::LatencyProfile profile;
  profile.mutable_key()->set_namespace_("default");
  profile.mutable_key()->set_device_class("cpu");
  profile.mutable_key()->set_model_class("tiny");
  profile.set_source("measured");
  return {StoreJob{{kJob, Spec(2), 3, false}},
          StoreProfile{profile},
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
  EXPECT_EQ(jobs->front().spec.num_layers(), 2u);
  ASSERT_THAT(*store.LoadProfiles(), SizeIs(1));
  EXPECT_EQ(store.LoadProfiles()->front().source(), "measured");
  const auto coverage = store.LoadCoverage(kJob);
  ASSERT_THAT(*coverage, SizeIs(2));
  EXPECT_EQ(coverage->back().index, 7u);
  EXPECT_EQ(coverage->back().bytes, std::string("se\0ven", 6));
  EXPECT_EQ(*store.LoadLatencyState(kJob), "latency");
  EXPECT_THAT(*store.LoadConsumed(kJob), SizeIs(3));
}

class SqliteStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sb-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "store.db";
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<SqliteStore::Opened> Open() {
    return SqliteStore::Open(path_.string(), absl::FromUnixSeconds(0));
  }
  std::unique_ptr<SqliteStore> MustOpen() {
    auto opened = Open();
    EXPECT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->set_aside_path, "") << opened->set_aside_reason;
    return std::move(opened->store);
  }
  void FillAndClose() {
    const auto store = MustOpen();
    ASSERT_TRUE(store->Apply(Everything()).ok());
  }

  fs::path folder_;
  fs::path path_;
};

TEST_F(SqliteStoreTest, HoldsEverythingOverARestart) {
  FillAndClose();
  ExpectEverything(*MustOpen());
}

TEST_F(SqliteStoreTest, TheLeaderEpochRisesWithEveryStartAndAboveWhatClientsReport) {
  EXPECT_EQ(*MustOpen()->RaiseLeaderEpoch(0), 1u);
  EXPECT_EQ(*MustOpen()->RaiseLeaderEpoch(0), 2u);
  EXPECT_EQ(*MustOpen()->RaiseLeaderEpoch(90), 91u);
  EXPECT_EQ(*MustOpen()->RaiseLeaderEpoch(5), 92u);
}

TEST_F(SqliteStoreTest, AFileThatIsNoDatabaseIsSetAsideAndReported) {
  const std::string rubbish = "this was never a database, however long one looks at it\n";
  {
    std::ofstream file(path_);
    for (int i = 0; i < 100; ++i) file << rubbish;
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->set_aside_path, path_.string() + ".corrupt-19700101T000000Z");
  EXPECT_THAT(opened->set_aside_reason, HasSubstr("not a database"));
  std::ifstream kept(opened->set_aside_path);
  std::string line;
  std::getline(kept, line);
  EXPECT_EQ(line + "\n", rubbish);
  EXPECT_THAT(*opened->store->LoadJobs(), IsEmpty());
  EXPECT_TRUE(opened->store->Apply(Everything()).ok());
  opened->store.reset();
  ExpectEverything(*MustOpen());
}

TEST_F(SqliteStoreTest, ATruncatedFileIsSetAsideAndTheNextOneDoesNotReplaceIt) {
  for (int round = 0; round < 2; ++round) {
    FillAndClose();
    fs::resize_file(path_, fs::file_size(path_) / 2);
    auto opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_FALSE(opened->set_aside_path.empty());
    EXPECT_TRUE(fs::exists(opened->set_aside_path));
    EXPECT_THAT(*opened->store->LoadJobs(), IsEmpty());
    opened->store.reset();
  }
  EXPECT_TRUE(fs::exists(path_.string() + ".corrupt-19700101T000000Z"));
  EXPECT_TRUE(fs::exists(path_.string() + ".corrupt-19700101T000000Z-2"));
}

TEST_F(SqliteStoreTest, DamageInsideTheFileIsFoundAtTheStart) {
  FillAndClose();
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 8);
    file << std::string(2000, '\xff');
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->set_aside_path.empty());
}

TEST_F(SqliteStoreTest, AFileInUseIsRefusedAndNotTakenForDamaged) {
  FillAndClose();
  const auto first = MustOpen();
  const absl::Status second = Open().status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("another coordinator"));
  ExpectEverything(*first);
}

TEST_F(SqliteStoreTest, AnotherProgramsDatabaseIsRefusedAndLeftAlone) {
  {
    auto db = SqliteDb::Open(path_.string());
    ASSERT_TRUE(db.ok()) << db.status();
    ASSERT_TRUE((*db)->Execute("CREATE TABLE theirs(x); INSERT INTO theirs VALUES (1);").ok());
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Open().status()));
  auto db = SqliteDb::Open(path_.string());
  EXPECT_EQ(*(*db)->QueryInt("SELECT count(*) FROM theirs"), 1u);
}

TEST_F(SqliteStoreTest, PathsThatCannotBeOpenedAreRefused) {
  EXPECT_TRUE(
      absl::IsFailedPrecondition(SqliteStore::Open(folder_.string(), absl::UnixEpoch()).status()));
  const auto missing = SqliteStore::Open((folder_ / "no" / "store.db").string(), absl::UnixEpoch());
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("no/store.db"));
}

TEST_F(SqliteStoreTest, OlderFilesAreMigratedAndNewerOnesRefused) {
  FillAndClose();
  std::vector<std::string> migrations = SchemaMigrations();
  migrations.push_back("ALTER TABLE jobs ADD COLUMN note TEXT NOT NULL DEFAULT 'none';");
  {
    auto db = SqliteDb::Open(path_.string());
    ASSERT_TRUE(MigrateSchema(**db, migrations).ok());
    EXPECT_EQ(*(*db)->QueryInt("PRAGMA user_version"), migrations.size());
    EXPECT_EQ(*(*db)->QueryInt("SELECT count(*) FROM jobs WHERE note = 'none'"), 1u);
    EXPECT_TRUE(MigrateSchema(**db, migrations).ok());  // nothing left to do
  }
  const absl::Status newer = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_THAT(std::string(newer.message()), HasSubstr("schema version"));
}

TEST_F(SqliteStoreTest, AMigrationThatFailsChangesNothing) {
  FillAndClose();
  std::vector<std::string> migrations = SchemaMigrations();
  migrations.push_back("DELETE FROM jobs; CREATE TABLE broken(");
  {
    auto db = SqliteDb::Open(path_.string());
    EXPECT_FALSE(MigrateSchema(**db, migrations).ok());
  }
  ExpectEverything(*MustOpen());
}

TEST_F(SqliteStoreTest, WritesOfManyThreadsAllArrive) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 200;
  {
    const auto store = MustOpen();
    StoreWriter writer(store.get());
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&writer, t] {
        for (uint64_t i = 0; i < kEach; ++i) {
          EXPECT_TRUE(writer.Write(StoreConsumed{kJob, Consumed(t * kEach + i, 0)}).ok());
        }
      });
    }
    for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(store->LoadConsumed(kJob).ok());
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(*MustOpen()->LoadConsumed(kJob), SizeIs(kThreads * kEach));
}

}  // namespace
}  // namespace sparsebalance
