// What training writes to disk and reads back: tensors, records of plans, coverage.
#include <cstring>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"
#include "worker/train/coverage_notes.h"
#include "worker/train/file_util.h"
#include "worker/train/plan_record.h"
#include "worker/train/tensor_file.h"

namespace sparsebalance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status =
        WriteTensorFile(path_, {{"a.weight", {2, 3}, a_}, {"empty", {0}, {}}, {"b", {1}, b_}});
    ASSERT_TRUE(status.ok()) << status;
  }

  const std::vector<float> a_ = {1, -2, 3.5f, 0, 1e-30f, 7};
  const std::vector<float> b_ = {-0.0f};
  data_testing::TempFolder folder_;
  const std::string path_ = folder_ / "t.safetensors";
};

TEST_F(TensorFileTest, TensorsComeBackBitByBit) {
  const auto file = TensorFile::Read(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 3u);
  const auto a = file->Get("a.weight", {2, 3});
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(std::vector<float>(a->begin(), a->end()), a_);
  EXPECT_TRUE(file->Get("empty", {0})->empty());
}

TEST_F(TensorFileTest, TheHeaderIsSafetensorsLayout) {
  const std::string bytes = *ReadFile(path_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.substr(8, 70),
            R"({"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"empty)");
  EXPECT_EQ(bytes.size(), 8 + length + 7 * sizeof(float));
}

TEST_F(TensorFileTest, AMissingOrMisshapenTensorIsNamed) {
  const auto file = TensorFile::Read(path_);
  ASSERT_TRUE(file.ok());
  const auto missing = file->Get("c", {1});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("no tensor c"));
  const auto misshapen = file->Get("a.weight", {3, 2});
  EXPECT_EQ(misshapen.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(misshapen.status().message(), HasSubstr("[2, 3], the model needs [3, 2]"));
}

TEST_F(TensorFileTest, EveryTruncationIsRefused) {
  const std::string bytes = *ReadFile(path_);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(WriteFile(folder_ / "cut", bytes.substr(0, size)).ok());
    const auto file = TensorFile::Read(folder_ / "cut");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(TensorFileTest, AnotherElementTypeIsRefusedByName) {
  const std::string header = R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header + std::string(4, '\0');
  ASSERT_TRUE(WriteFile(folder_ / "half", bytes).ok());
  const auto file = TensorFile::Read(folder_ / "half");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(file.status().message(), HasSubstr("F16"));
}

TEST(FileUtilTest, AFolderThatIsNotThereIsAnErrorWithTheSystemsReason) {
  EXPECT_THAT(WriteFile("/nonexistent/file", "x").message(), HasSubstr("No such file"));
  EXPECT_EQ(ReadFile("/nonexistent/file").status().code(), absl::StatusCode::kNotFound);
}

v1::PlanRecord Record(uint64_t step, uint32_t rank, uint64_t digest, uint64_t sequence) {
  v1::PlanRecord record;
  record.set_step(step);
  record.set_plan_digest(digest);
  record.set_generation(1);
  record.mutable_plan()->set_step(step);
  record.mutable_plan()->set_policy("length");
  v1::RankPlan& plan = *record.mutable_plan()->add_ranks();
  plan.set_rank(rank);
  v1::Slice& slice = *plan.add_micro_batches()->add_slices();
  slice.set_sequence_id(sequence);
  slice.set_budget_blocks(1);
  return record;
}

class PlanRecordTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::vector<v1::PlanRecord>& records,
             size_t local_ranks = 1) {
    auto recorder = PlanRecorder::Open(folder_ / name, /*append=*/false);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    for (const v1::PlanRecord& record : records) {
      ASSERT_TRUE((*recorder)->Add(record, local_ranks).ok());
    }
  }
  std::vector<uint64_t> SequencesOf(PlanReplay& replay, uint64_t step) {
    std::vector<uint64_t> ids;
    const auto offer = replay.Wait(step, absl::InfinitePast());
    if (!offer.has_value()) return ids;
    for (const auto& rank : offer->plan->ranks()) {
      ids.push_back(rank.micro_batches(0).slices(0).sequence_id());
    }
    return ids;
  }
  data_testing::TempFolder folder_;
};

TEST_F(PlanRecordTest, NodesRecordsAreJoinedByStepInTheOrderOfRanks) {
  Write("plans/b.jsonl", {Record(0, 0, 9, 10), Record(0, 2, 9, 12)}, /*local_ranks=*/2);
  Write("plans/a.jsonl", {Record(0, 1, 9, 11)});
  auto replay = PlanReplay::Load({folder_ / "plans"});
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_THAT(SequencesOf(**replay, 0), ElementsAre(10, 11, 12));
}

TEST_F(PlanRecordTest, AStepThatWasRunAgainAfterAResumeCountsAsRunLast) {
  Write("p.jsonl", {Record(0, 0, 1, 10), Record(1, 0, 2, 11), Record(1, 0, 3, 21)});
  auto replay = PlanReplay::Load({folder_ / "p.jsonl"});
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_THAT(SequencesOf(**replay, 1), ElementsAre(21));
}

TEST_F(PlanRecordTest, RecordsOfDifferentRunsContradictEachOther) {
  Write("a.jsonl", {Record(4, 0, 1, 10)});
  Write("b.jsonl", {Record(4, 1, 2, 11)});
  const auto replay = PlanReplay::Load({folder_ / "a.jsonl", folder_ / "b.jsonl"});
  EXPECT_EQ(replay.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(replay.status().message(), HasSubstr("different plans of step 4"));
}

TEST_F(PlanRecordTest, WhatIsNoRecordIsNamedByFileAndLine) {
  Write("a.jsonl", {Record(0, 0, 1, 10)});
  std::ofstream(folder_ / "a.jsonl", std::ios::app) << "{\"step\": \n";
  const auto replay = PlanReplay::Load({folder_ / "a.jsonl"});
  EXPECT_THAT(replay.status().message(), HasSubstr("a.jsonl:2: not a plan record"));
  EXPECT_EQ(PlanReplay::Load({folder_ / "none.jsonl"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(PlanReplay::Load({folder_.path() + "/plans"}).status().message(), HasSubstr("plans"));
}

TEST(CoverageNotesTest, NotesComeBackFromTheirFileAndDamageIsSeen) {
  data_testing::TempFolder folder;
  CoverageNotes notes(/*most=*/2);
  for (uint64_t id = 1; id <= 3; ++id) {
    v1::SequenceTelemetry telemetry;
    telemetry.set_sequence_id(id);
    telemetry.set_tokens(100);
    telemetry.mutable_coverage()->add_budget_blocks(1);
    telemetry.mutable_coverage()->add_budget_blocks(2);
    telemetry.mutable_coverage()->add_coverage(0);
    telemetry.mutable_coverage()->add_coverage(1);
    notes.Put(telemetry);
  }
  EXPECT_EQ(notes.size(), 2u);
  ASSERT_TRUE(notes.Save(folder / "c").ok());
  const auto entries = CoverageNotes::Load(folder / "c");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[1].sequence_id(), 2u);
  EXPECT_EQ((*entries)[1].coverage().budget_blocks(1), 2u);

  std::string bytes = *ReadFile(folder / "c");
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFile(folder / "c", bytes).ok());
  EXPECT_EQ(CoverageNotes::Load(folder / "c").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sparsebalance
