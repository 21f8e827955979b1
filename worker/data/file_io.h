// Files: a read-only mapping, and a file that appears under its name only once it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::data {

// A whole file, mapped read-only. The file must not be cut short while it is mapped.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  // NOT_FOUND or the code of the system's error, with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Writes `path`.partial.<pid>; Publish() makes it durable and gives it its name. Destroyed before
// that, it removes what it wrote.
class PendingFile {
 public:
  PendingFile() = default;
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&& other) noexcept;

  static absl::StatusOr<PendingFile> Create(const std::string& path);

  bool open() const { return fd_ >= 0; }
  // Buffered.
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Write(std::string_view text);

  // Overwrites bytes that were written before, such as a header with counts.
  absl::Status Overwrite(uint64_t offset, std::string_view text);

  // Everything written so far reaches the disk; nothing may be written after it.
  absl::Status Sync();
  // Gives the synced file its name, in place of a file that had it.
  absl::Status Publish();

 private:
  absl::Status Flush();

  std::string path_;
  std::string partial_path_;
  std::string buffer_;
  int fd_ = -1;
  bool synced_ = false;
};

// Makes renames and removals in the folder of `path` durable.
absl::Status SyncFolderOf(const std::string& path);

// "PATH: DOING: what the system says", with the matching code.
absl::Status SystemError(int error, std::string_view path, std::string_view doing);

}  // namespace sparsebalance::data
