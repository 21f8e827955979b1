#include "coordinator/cli/backup_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class BackupFile : public testing::Test {
 protected:
  BackupFile() {
    directory_ =
        fs::path(testing::TempDir()) /
        ("backup_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    path_ = (directory_ / "jobs.backup").string();
  }
  ~BackupFile() override { fs::remove_all(directory_); }

  void WriteRecords(uint64_t count) {
    auto writer = BackupWriter::Open(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    v1::StateRecord record;
    for (uint64_t i = 0; i < count; ++i) {
      record.mutable_coverage()->set_index(i);
      record.mutable_coverage()->set_bytes(std::string(1000, 'x'));
      ASSERT_TRUE((*writer)->Write(record).ok());
    }
    ASSERT_TRUE((*writer)->Commit().ok());
  }

  // Reads until the end or an error.
  absl::StatusOr<uint64_t> CountRecords() {
    auto reader = BackupReader::Open(path_);
    if (!reader.ok()) return reader.status();
    v1::StateRecord record;
    for (uint64_t count = 0;; ++count) {
      const auto more = (*reader)->Read(record);
      if (!more.ok()) return more.status();
      if (!*more) return count;
      EXPECT_EQ(record.coverage().index(), count);
    }
  }

  size_t FilesInDirectory() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
  std::string path_;
};

TEST_F(BackupFile, GivesBackWhatWasWritten) {
  WriteRecords(300);
  const auto count = CountRecords();
  ASSERT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(*count, 300u);
  EXPECT_EQ(FilesInDirectory(), 1u);
}

TEST_F(BackupFile, IsForItsOwnersEyesOnly) {
  WriteRecords(1);
  struct stat facts {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
}

TEST_F(BackupFile, ThatWasNotFinishedLeavesTheOldOneAndNothingElse) {
  WriteRecords(5);
  {
    auto writer = BackupWriter::Open(path_);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Write(v1::StateRecord()).ok());
  }
  EXPECT_EQ(*CountRecords(), 5u);
  EXPECT_EQ(FilesInDirectory(), 1u);
}

TEST_F(BackupFile, ThatIsCutWithinARecordSaysSo) {
  WriteRecords(5);
  fs::resize_file(path_, fs::file_size(path_) - 10);
  const auto count = CountRecords();
  EXPECT_EQ(count.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(count.status().message()), HasSubstr("is damaged at byte"));
}

TEST_F(BackupFile, OfAnotherKindIsRefused) {
  for (const char* content :
       {"", "spars", "{\"jobs\": []} and a good deal more than the first line"}) {
    std::ofstream(path_, std::ios::trunc) << content;
    EXPECT_THAT(std::string(CountRecords().status().message()), HasSubstr("is no backup"));
  }
  fs::remove(path_);
  EXPECT_EQ(CountRecords().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BackupFile, InADirectoryThatIsNotThereIsRefused) {
  const auto writer = BackupWriter::Open(path_ + "/below");
  EXPECT_THAT(std::string(writer.status().message()),
              HasSubstr("cannot write " + path_ + "/below"));
}

}  // namespace
}  // namespace sparsebalance
