#include "worker/train/file_util.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

std::string SystemReason() { return std::error_code(errno, std::generic_category()).message(); }

}  // namespace

FileWriter::FileWriter(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    status_ =
        absl::UnavailableError(absl::StrCat("cannot create ", temporary_, ": ", SystemReason()));
  }
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void FileWriter::Write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (status_.ok() && bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      status_ =
          absl::UnavailableError(absl::StrCat("cannot write ", temporary_, ": ", SystemReason()));
      return;
    }
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

absl::Status FileWriter::Finish() {
  if (!status_.ok()) return status_;
  if (::fsync(fd_) != 0 || ::close(std::exchange(fd_, -1)) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    status_ = absl::UnavailableError(absl::StrCat("cannot finish ", path_, ": ", SystemReason()));
    ::unlink(temporary_.c_str());
  }
  return status_;
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  FileWriter writer(path);
  writer.Write(bytes.data(), bytes.size());
  return writer.Finish();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const bool missing = errno == ENOENT;
    const std::string message = absl::StrCat("cannot open ", path, ": ", SystemReason());
    return missing ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  std::string bytes;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error) bytes.reserve(size);
  std::array<char, 1 << 16> chunk;
  while (true) {
    const ssize_t count = ::read(fd, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const std::string message = absl::StrCat("cannot read ", path, ": ", SystemReason());
      ::close(fd);
      return absl::UnavailableError(message);
    }
    if (count == 0) break;
    bytes.append(chunk.data(), static_cast<size_t>(count));
  }
  ::close(fd);
  return bytes;
}

std::string Sha256Hex(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), length));
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::fsync(fd) != 0) {
    const std::string message = absl::StrCat("cannot sync folder ", folder, ": ", SystemReason());
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(message);
  }
  ::close(fd);
  return absl::OkStatus();
}

}  // namespace sparsebalance
