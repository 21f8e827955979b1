// Files that are there whole or not at all.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance {

// Writes to `path`.tmp; Finish() syncs and renames it to `path`. Without Finish, or after an error,
// the temporary file is removed and `path` is untouched. The first error is kept and returned last.
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void Write(const void* data, size_t bytes);
  // UNAVAILABLE with the system's reason (disk full, no permission, ...).
  absl::Status Finish();

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  absl::Status status_;
};

absl::Status WriteFile(const std::string& path, const std::string& bytes);

// NOT_FOUND or UNAVAILABLE with the system's reason.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// SHA-256 in hexadecimal.
std::string Sha256Hex(const std::string& bytes);

// Makes earlier renames in `folder` durable.
absl::Status SyncFolder(const std::string& folder);

}  // namespace sparsebalance
