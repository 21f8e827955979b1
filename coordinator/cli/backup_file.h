// A backup on disk: a line that says what it is, then StateRecords, each preceded by its length.
#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "sparsebalance/v1/operator.pb.h"

namespace sparsebalance {

// Writes beside the target and moves it there at the end: a file that exists is whole, and another
// backup of that name is replaced only by a whole one. Only the owner may read it.
class BackupWriter {
 public:
  static absl::StatusOr<std::unique_ptr<BackupWriter>> Open(const std::string& path);
  ~BackupWriter();  // without Commit nothing is left

  absl::Status Write(const v1::StateRecord& record);
  absl::Status Commit();  // durable on return

 private:
  BackupWriter(std::string path, std::string temporary, int fd);

  absl::Status Failed(const std::string& what);

  const std::string path_;
  const std::string temporary_;
  int fd_;
  std::unique_ptr<google::protobuf::io::FileOutputStream> stream_;
};

class BackupReader {
 public:
  // NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT where the file is no backup.
  static absl::StatusOr<std::unique_ptr<BackupReader>> Open(const std::string& path);
  ~BackupReader();

  // False at the end of the file. DATA_LOSS where it ends within a record or holds something else.
  absl::StatusOr<bool> Read(v1::StateRecord& record);

 private:
  BackupReader(std::string path, int fd);

  const std::string path_;
  const int fd_;
  std::unique_ptr<google::protobuf::io::FileInputStream> stream_;
};

}  // namespace sparsebalance
