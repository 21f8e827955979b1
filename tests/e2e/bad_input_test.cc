// Each mistake gets one clear line and an exit code that says what to do; nothing hangs.
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/cluster.h"

namespace sparsebalance::e2e {
namespace {

using ::testing::HasSubstr;

constexpr int kUsage = 2;
constexpr int kRefused = 3;

class BadInputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new Cluster;
    cluster_->PackData(30, 20, 300);
    cluster_->StartCoordinator();
  }
  static void TearDownTestSuite() { delete cluster_; }

  static void ExpectExit(int code, const std::string& message,
                         const std::vector<std::string>& flags) {
    auto worker = cluster_->StartWorker(2, 0, flags);
    EXPECT_EQ(worker->Wait(), code) << worker->Output();
    EXPECT_THAT(worker->Output(), HasSubstr(message));
  }

  static void CutFile(const std::string& from, const std::string& to, size_t bytes_less) {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(to, std::filesystem::file_size(to) - bytes_less);
  }

  static Cluster* cluster_;
};

Cluster* BadInputTest::cluster_ = nullptr;

TEST_F(BadInputTest, ATruncatedDataSet) {
  const std::string cut = cluster_->folder() / "cut";
  CutFile(cluster_->dataset() + ".idx", cut + ".idx", 8);
  std::filesystem::copy_file(cluster_->dataset() + ".bin", cut + ".bin");
  ExpectExit(kUsage, "cut.idx", {"--dataset", cut});
  std::filesystem::copy_file(cluster_->dataset() + ".idx", cut + ".idx",
                             std::filesystem::copy_options::overwrite_existing);
  CutFile(cluster_->dataset() + ".bin", cut + ".bin", 2);
  ExpectExit(kUsage, "cut.bin", {"--dataset", cut});
}

TEST_F(BadInputTest, AFileThatIsNoDataSet) {
  const std::string wrong = cluster_->folder() / "wrong";
  std::ofstream(wrong + ".idx") << std::string(100, 'x');
  std::ofstream(wrong + ".bin") << "x";
  ExpectExit(kUsage, "wrong.idx", {"--dataset", wrong});
}

TEST_F(BadInputTest, ADataSetThatIsNotThere) {
  ExpectExit(kUsage, "nowhere", {"--dataset", cluster_->folder() / "nowhere"});
}

TEST_F(BadInputTest, ASequenceLongerThanTheCap) {
  ExpectExit(kUsage, "more than a micro-batch may hold (64)",
             {"--max-tokens-per-micro-batch", "64"});
}

TEST_F(BadInputTest, AGpuWhereThereIsNone) {
  if (std::filesystem::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  ExpectExit(kUsage, "backend \"cuda\": ", {"--backend", "cuda"});
  ExpectExit(kUsage, "--precision bf16 needs a GPU", {"--precision", "bf16"});
}

TEST_F(BadInputTest, ARankOutOfRange) {
  ExpectExit(kUsage, "rank 7 does not exist: the job has ranks 0 to 1", {"--ranks", "7"});
}

TEST_F(BadInputTest, AnUnknownPolicy) {
  ExpectExit(kUsage, "karmarkar-karp", {"--policy", "fastest"});
}

TEST_F(BadInputTest, DegreesThatWorkersDoNotSplitBy) {
  ExpectExit(kUsage, "both must be 1", {"--pipeline-parallel", "2"});
}

TEST_F(BadInputTest, AnUnknownFlagAndABadConfigFile) {
  ExpectExit(kUsage, "--no-such-flag", {"--no-such-flag", "1"});
  const std::string config = cluster_->folder() / "bad.toml";
  std::ofstream(config) << "no-such-key = 1\n";
  ExpectExit(kUsage, "no-such-key", {"--config", config});
}

TEST_F(BadInputTest, ABackendThatThisBuildOrMachineDoesNotHave) {
  ExpectExit(kUsage, "cuda", {"--backend", "cuda", "--data-parallel", "1", "--job", "cuda"});
}

TEST_F(BadInputTest, AMetricsPortInUse) {
  ExpectExit(kUsage, "--metrics-listen",
             {"--metrics-listen", absl::StrCat("127.0.0.1:", cluster_->metrics_port())});
}

TEST_F(BadInputTest, AnotherSpecUnderALiveName) {
  auto first = cluster_->StartWorker(2, 0, {"--job", "live", "--no-profile-at-start"});
  ASSERT_TRUE(first->WaitForLine("waiting for rank 1").has_value()) << first->Output();
  auto second = cluster_->StartWorker(2, 1, {"--job", "live", "--global-batch-size", "4"});
  EXPECT_EQ(second->Wait(), kRefused) << second->Output();
  EXPECT_THAT(second->Output(), HasSubstr("global_batch_size"));
  first->Signal(SIGTERM);
  EXPECT_EQ(first->Wait(), 75) << first->Output();
}

TEST_F(BadInputTest, TwoNodesWithTheSameRank) {
  auto first = cluster_->StartWorker(2, 0, {"--job", "twice", "--no-profile-at-start"});
  ASSERT_TRUE(first->WaitForLine("waiting for rank 1").has_value()) << first->Output();
  auto second = cluster_->StartWorker(
      2, 0, {"--job", "twice", "--node-id", "other", "--no-profile-at-start"});
  EXPECT_EQ(second->Wait(), kRefused) << second->Output();
  EXPECT_THAT(second->Output(), HasSubstr("rank 0"));
  first->Signal(SIGTERM);
  EXPECT_EQ(first->Wait(), 75) << first->Output();
}

TEST_F(BadInputTest, NodesThatReadDifferentDataAreToldApartBeforeTraining) {
  Cluster other;
  other.PackData(31, 20, 300);
  auto first = cluster_->StartWorker(2, 0, {"--job", "apart", "--no-profile-at-start"});
  ASSERT_TRUE(first->WaitForLine("waiting for rank 1").has_value()) << first->Output();
  auto second = cluster_->StartWorker(2, 1, {"--job", "apart", "--dataset", other.dataset()});
  EXPECT_EQ(second->Wait(), kRefused) << second->Output();
  EXPECT_THAT(second->Output(), HasSubstr("dataset_fingerprint"));
  first->Signal(SIGTERM);
  EXPECT_EQ(first->Wait(), 75) << first->Output();
}

TEST_F(BadInputTest, ACoordinatorPortInUse) {
  ChildProcess second({Program("sparsebalance-coordinator"), "--listen", cluster_->address(),
                       "--store", cluster_->folder() / "other.sqlite"});
  EXPECT_EQ(second.Wait(), kUsage) << second.Output();
  EXPECT_THAT(second.Output(), HasSubstr(cluster_->address()));
}

}  // namespace
}  // namespace sparsebalance::e2e
