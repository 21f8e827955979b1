#include "coordinator/cli/backup_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/util/delimited_message_util.h"

namespace sparsebalance {
namespace {

constexpr std::string_view kMagic = "sparsebalance backup 1\n";

std::string Reason(int error) { return std::generic_category().message(error); }

absl::Status FileError(const std::string& path, const std::string& what, int error) {
  const std::string line = absl::StrCat(what, " ", path, ": ", Reason(error));
  if (error == ENOENT) return absl::NotFoundError(line);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(line);
  return absl::UnavailableError(line);
}

}  // namespace

BackupWriter::BackupWriter(std::string path, std::string temporary, int fd)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      fd_(fd),
      stream_(std::make_unique<google::protobuf::io::FileOutputStream>(fd)) {}

absl::StatusOr<std::unique_ptr<BackupWriter>> BackupWriter::Open(const std::string& path) {
  std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return FileError(path, "cannot write", errno);
  std::unique_ptr<BackupWriter> writer(new BackupWriter(path, std::move(temporary), fd));
  google::protobuf::io::CodedOutputStream(writer->stream_.get())
      .WriteRaw(kMagic.data(), static_cast<int>(kMagic.size()));
  return writer;
}

BackupWriter::~BackupWriter() {
  stream_.reset();
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status BackupWriter::Failed(const std::string& what) {
  return FileError(path_, what, stream_->GetErrno() == 0 ? EIO : stream_->GetErrno());
}

absl::Status BackupWriter::Write(const v1::StateRecord& record) {
  if (!google::protobuf::util::SerializeDelimitedToZeroCopyStream(record, stream_.get())) {
    return Failed("cannot write");
  }
  return absl::OkStatus();
}

absl::Status BackupWriter::Commit() {
  if (!stream_->Flush()) return Failed("cannot write");
  if (fsync(fd_) != 0) return FileError(path_, "cannot store", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FileError(path_, "cannot put in place", errno);
  }
  stream_.reset();
  close(std::exchange(fd_, -1));
  // The name is durable once its directory is.
  const std::string directory = std::filesystem::absolute(path_).parent_path().string();
  const int dir = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    fsync(dir);
    close(dir);
  }
  return absl::OkStatus();
}

BackupReader::BackupReader(std::string path, int fd)
    : path_(std::move(path)),
      fd_(fd),
      stream_(std::make_unique<google::protobuf::io::FileInputStream>(fd)) {}

absl::StatusOr<std::unique_ptr<BackupReader>> BackupReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "cannot read", errno);
  std::unique_ptr<BackupReader> reader(new BackupReader(path, fd));
  std::string magic(kMagic.size(), '\0');
  google::protobuf::io::CodedInputStream stream(reader->stream_.get());
  if (!stream.ReadRaw(magic.data(), static_cast<int>(magic.size())) || magic != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no backup of a coordinator (they are made by `sbctl backup`)"));
  }
  return reader;
}

BackupReader::~BackupReader() {
  stream_.reset();
  close(fd_);
}

absl::StatusOr<bool> BackupReader::Read(v1::StateRecord& record) {
  record.Clear();
  bool at_end = false;
  if (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&record, stream_.get(), &at_end)) {
    return true;
  }
  if (at_end) return false;
  return absl::DataLossError(absl::StrCat(
      path_, " is damaged at byte ", stream_->ByteCount(),
      stream_->GetErrno() == 0 ? "" : absl::StrCat(": ", Reason(stream_->GetErrno()))));
}

}  // namespace sparsebalance
