#include "worker/data/file_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance::data {

absl::Status SystemError(int error, std::string_view path, std::string_view doing) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat(std::string(path), ": ", std::string(doing), ": ",
                                   std::error_code(error, std::generic_category()).message()));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(errno, path, "cannot open");
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  MappedFile file;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return SystemError(error, path, "cannot map");
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  close(fd);
  return file;
}

PendingFile::~PendingFile() {
  if (fd_ >= 0) close(fd_);
  if (!partial_path_.empty()) unlink(partial_path_.c_str());
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::exchange(other.partial_path_, {})),
      buffer_(std::move(other.buffer_)),
      fd_(std::exchange(other.fd_, -1)),
      synced_(other.synced_) {}

PendingFile& PendingFile::operator=(PendingFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(partial_path_, other.partial_path_);
  std::swap(buffer_, other.buffer_);
  std::swap(fd_, other.fd_);
  std::swap(synced_, other.synced_);
  return *this;
}

absl::StatusOr<PendingFile> PendingFile::Create(const std::string& path) {
  PendingFile file;
  file.path_ = path;
  const std::string partial = absl::StrCat(path, ".partial.", getpid());
  file.fd_ = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.fd_ < 0) return SystemError(errno, partial, "cannot create");
  file.partial_path_ = partial;
  return file;
}

absl::Status PendingFile::Write(std::span<const std::byte> bytes) {
  return Write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::Status PendingFile::Write(std::string_view text) {
  constexpr size_t kBufferBytes = 1 << 20;
  buffer_.append(text);
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status PendingFile::Flush() {
  for (size_t done = 0; done < buffer_.size();) {
    const ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, partial_path_, "cannot write");
    done += static_cast<size_t>(n);
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status PendingFile::Overwrite(uint64_t offset, std::string_view text) {
  absl::Status status = Flush();
  while (status.ok() && !text.empty()) {
    const ssize_t n = pwrite(fd_, text.data(), text.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return SystemError(errno, partial_path_, "cannot write");
    text.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return status;
}

absl::Status PendingFile::Sync() {
  absl::Status status = Flush();
  if (!status.ok()) return status;
  if (fsync(fd_) != 0) return SystemError(errno, partial_path_, "cannot sync");
  if (close(std::exchange(fd_, -1)) != 0) return SystemError(errno, partial_path_, "cannot close");
  synced_ = true;
  return absl::OkStatus();
}

absl::Status PendingFile::Publish() {
  if (!synced_) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": sync it before publishing it"));
  }
  if (rename(partial_path_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, path_, "cannot rename to it");
  }
  partial_path_.clear();
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(errno, folder, "cannot open");
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  return result == 0 ? absl::OkStatus() : SystemError(error, folder, "cannot sync");
}

}  // namespace sparsebalance::data
