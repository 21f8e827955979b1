#include "worker/data/input_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/data/file_io.h"

namespace sparsebalance::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 1 << 20;

absl::Status AddFolder(const std::string& folder, InputFiles& files);

absl::Status AddPath(const std::string& path, const fs::file_status& status, InputFiles& files) {
  switch (status.type()) {
    case fs::file_type::directory:
      return AddFolder(path, files);
    case fs::file_type::symlink:
      ++files.links_skipped;
      return absl::OkStatus();
    case fs::file_type::regular: {
      std::error_code error;
      const std::uintmax_t bytes = fs::file_size(path, error);
      if (error) return SystemError(error.value(), path, "cannot read its size");
      if (bytes == 0) {
        ++files.empty_skipped;
      } else {
        files.paths.push_back(path);
      }
      return absl::OkStatus();
    }
    default:
      ++files.specials_skipped;
      return absl::OkStatus();
  }
}

absl::Status AddFolder(const std::string& folder, InputFiles& files) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().string());
  }
  if (error) return SystemError(error.value(), folder, "cannot list");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const fs::file_status status = fs::symlink_status(name, error);
    if (error) return SystemError(error.value(), name, "cannot examine");
    absl::Status added = AddPath(name, status, files);
    if (!added.ok()) return added;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InputFiles> CollectInputs(const std::vector<std::string>& inputs) {
  InputFiles files;
  for (const std::string& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (error) return SystemError(error.value(), input, "cannot examine");
    absl::Status added = AddPath(input, status, files);
    if (!added.ok()) return added;
  }
  return files;
}

bool IsGzip(const std::string& path) { return absl::EndsWith(path, ".gz"); }

bool IsJsonLines(const std::string& path) {
  std::string name = path;
  if (IsGzip(name)) name.resize(name.size() - 3);
  return absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".ndjson");
}

InputStream::~InputStream() {
  if (gzip_ != nullptr) gzclose_r(static_cast<gzFile>(gzip_));
  if (fd_ >= 0) close(fd_);
}

InputStream::InputStream(InputStream&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      gzip_(std::exchange(other.gzip_, nullptr)),
      pending_(std::move(other.pending_)),
      pending_begin_(other.pending_begin_) {}

InputStream& InputStream::operator=(InputStream&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(gzip_, other.gzip_);
  std::swap(pending_, other.pending_);
  std::swap(pending_begin_, other.pending_begin_);
  return *this;
}

absl::StatusOr<InputStream> InputStream::Open(const std::string& path) {
  InputStream stream;
  stream.path_ = path;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(errno, path, "cannot open");
  if (!IsGzip(path)) {
    stream.fd_ = fd;
    return stream;
  }
  stream.gzip_ = gzdopen(fd, "rb");  // owns fd from here on
  if (stream.gzip_ == nullptr) {
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory to decompress it"));
  }
  return stream;
}

absl::Status InputStream::Read(std::string& out) {
  const size_t old_size = out.size();
  out.resize(old_size + kReadBytes);
  absl::Status status = gzip_ != nullptr ? ReadGzip(out, old_size) : ReadPlain(out, old_size);
  if (!status.ok()) out.resize(old_size);
  return status;
}

absl::Status InputStream::ReadPlain(std::string& out, size_t old_size) {
  ssize_t n = 0;
  do {
    n = read(fd_, out.data() + old_size, kReadBytes);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return SystemError(errno, path_, "cannot read");
  out.resize(old_size + static_cast<size_t>(n));
  return absl::OkStatus();
}

absl::Status InputStream::ReadGzip(std::string& out, size_t old_size) {
  auto* gzip = static_cast<gzFile>(gzip_);
  const int n = gzread(gzip, out.data() + old_size, kReadBytes);
  int error = Z_OK;
  const char* message = gzerror(gzip, &error);
  // zlib passes on what does not begin as gzip does; under this name that is damage.
  if (n >= 0 && gzdirect(gzip) != 0) {
    return absl::DataLossError(absl::StrCat(path_, ": is named .gz but holds no gzip data"));
  }
  if (n < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    return absl::DataLossError(absl::StrCat(path_, ": damaged or cut gzip data: ", message));
  }
  out.resize(old_size + static_cast<size_t>(n));
  return absl::OkStatus();
}

absl::StatusOr<bool> InputStream::ReadLine(std::string& line, size_t max_bytes) {
  size_t searched = pending_begin_;
  for (;;) {
    const size_t end = pending_.find('\n', searched);
    const bool found = end != std::string::npos;
    const size_t length = (found ? end : pending_.size()) - pending_begin_;
    if (length > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a line is longer than ", max_bytes, " bytes"));
    }
    if (found) {
      line.assign(pending_, pending_begin_, length);
      pending_begin_ = end + 1;
      if (absl::EndsWith(line, "\r")) line.pop_back();
      return true;
    }
    pending_.erase(0, pending_begin_);
    pending_begin_ = 0;
    searched = pending_.size();
    absl::Status status = Read(pending_);
    if (!status.ok()) return status;
    if (pending_.size() == searched) {
      if (pending_.empty()) return false;
      line = std::exchange(pending_, {});
      if (absl::EndsWith(line, "\r")) line.pop_back();
      return true;
    }
  }
}

}  // namespace sparsebalance::data
