#include "coordinator/service/state_transfer.h"

#include <vector>

#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

class StateTransferTest : public testing::Test {
 protected:
  StateTransferTest() {
    for (const char* name : {"one", "two"}) {
      StoredJob job;
      job.id = {"default", name};
      job.spec = MakeSpec(name);
      job.spec.mutable_job()->set_namespace_("default");
      job.generation = 3;
      v1::ConsumedBatch batch;
      batch.set_step(4);
      batch.add_sequence_ids(11);
      EXPECT_TRUE(store_
                      .Apply({StoreJob{job}, StoreConsumed{job.id, batch},
                              StoreLatencyState{job.id, "latency"},
                              StoreCoverage{job.id, {{0, "averages"}, {1, "sequences"}}}})
                      .ok());
    }
    v1::LatencyProfile profile;
    profile.mutable_key()->set_namespace_("ml");
    profile.mutable_key()->set_device_class("h200");
    EXPECT_TRUE(store_.Apply({StoreProfile{profile}}).ok());
  }

  std::vector<v1::StateRecord> Export(const std::string& ns = "") {
    std::vector<v1::StateRecord> records;
    ExportOptions options;
    options.ns = ns;
    options.version = "1.2.3";
    options.leader_epoch = 17;
    const absl::Status status = ExportState(store_, options, [&](const v1::StateRecord& record) {
      records.push_back(record);
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    return records;
  }

  // Everything that an import hands over.
  struct Taken {
    std::vector<JobSeed> jobs;
    std::vector<v1::LatencyProfile> profiles;
    uint64_t above_epoch = 0;
  };
  static StateImporter::Targets Into(Taken& taken) {
    return {[&](v1::LatencyProfile profile) {
              taken.profiles.push_back(std::move(profile));
              return absl::OkStatus();
            },
            [&](JobSeed job, uint64_t above_epoch) {
              taken.jobs.push_back(std::move(job));
              taken.above_epoch = above_epoch;
              return absl::OkStatus();
            }};
  }
  static absl::StatusOr<v1::ImportStateResponse> Import(const std::vector<v1::StateRecord>& records,
                                                        Taken& taken) {
    StateImporter importer(Into(taken));
    for (const v1::StateRecord& record : records) {
      if (absl::Status status = importer.Add(record); !status.ok()) return status;
    }
    return importer.Finish();
  }

  MemoryStore store_;
};

TEST_F(StateTransferTest, BringsBackAllThatAStoreHolds) {
  Taken taken;
  const auto answer = Import(Export(), taken);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->jobs(), 2u);
  EXPECT_EQ(answer->profiles(), 1u);
  EXPECT_EQ(answer->consumed_batches(), 2u);
  EXPECT_EQ(taken.above_epoch, 17u);
  ASSERT_EQ(taken.jobs.size(), 2u);
  const JobSeed& job = taken.jobs[1];
  EXPECT_EQ(job.spec.job().name(), "two");
  EXPECT_EQ(job.generation, 3u);
  ASSERT_EQ(job.consumed.size(), 1u);
  EXPECT_EQ(job.consumed[0].sequence_ids(0), 11u);
  EXPECT_EQ(job.knowledge.latency_state, "latency");
  ASSERT_EQ(job.knowledge.coverage.size(), 2u);
  EXPECT_EQ(job.knowledge.coverage[1].index, 1u);
  EXPECT_EQ(job.knowledge.coverage[1].bytes, "sequences");
}

TEST_F(StateTransferTest, TakesOneNamespaceWhereAsked) {
  Taken taken;
  const auto answer = Import(Export("ml"), taken);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->jobs(), 0u);
  EXPECT_EQ(answer->profiles(), 1u);
}

TEST_F(StateTransferTest, NoticesWhereABackupEndsTooSoon) {
  const std::vector<v1::StateRecord> records = Export();
  for (size_t kept = 0; kept < records.size(); ++kept) {
    Taken taken;
    const auto answer = Import({records.begin(), records.begin() + static_cast<long>(kept)}, taken);
    EXPECT_THAT(answer.status(), HasCode(absl::StatusCode::kDataLoss)) << kept;
  }
}

TEST_F(StateTransferTest, NoticesARecordThatIsMissingOrComesTwice) {
  const std::vector<v1::StateRecord> records = Export();
  for (size_t i = 0; i < records.size(); ++i) {
    std::vector<v1::StateRecord> damaged = records;
    damaged.erase(damaged.begin() + static_cast<long>(i));
    Taken taken;
    EXPECT_FALSE(Import(damaged, taken).ok()) << "without record " << i;
    damaged = records;
    damaged.insert(damaged.begin() + static_cast<long>(i), records[i]);
    EXPECT_FALSE(Import(damaged, taken).ok()) << "with record " << i << " twice";
  }
}

TEST_F(StateTransferTest, RefusesAFormatThatItDoesNotKnow) {
  std::vector<v1::StateRecord> records = Export();
  records[0].mutable_header()->set_format(2);
  Taken taken;
  const auto answer = Import(records, taken);
  EXPECT_THAT(answer.status(), HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("restore it with version 1.2.3"));
}

TEST_F(StateTransferTest, StopsWhereItsReceiverIsGone) {
  int left = 3;
  const absl::Status status =
      ExportState(store_, {}, [&](const v1::StateRecord&) { return --left > 0; });
  EXPECT_THAT(status, HasCode(absl::StatusCode::kCancelled));
  EXPECT_EQ(left, 0);
}

TEST_F(StateTransferTest, IsTakenUpByARegistryWhichBeginsAboveItsEpoch) {
  MemoryStore empty;
  Coordinator coordinator(&empty);
  StateImporter importer({[](const v1::LatencyProfile&) { return absl::OkStatus(); },
                          [&](JobSeed job, uint64_t above) {
                            // What the store holds of coverage here is no real chunk.
                            job.knowledge = {};
                            return coordinator.registry->ImportJob(std::move(job), above, false);
                          }});
  for (const v1::StateRecord& record : Export()) {
    const absl::Status status = importer.Add(record);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(importer.Finish()->jobs(), 2u);
  EXPECT_EQ(coordinator.Status("one").generation(), 3u);
  EXPECT_GT(coordinator.Status("one").leader_epoch(), 17u);
  ASSERT_TRUE(coordinator.writer->Flush().ok());
  EXPECT_EQ(empty.LoadJobs()->size(), 2u);
  EXPECT_EQ(empty.LoadConsumed({"default", "two"})->size(), 1u);
}

}  // namespace
}  // namespace sparsebalance
