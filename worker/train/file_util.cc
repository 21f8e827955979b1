#include "worker/train/file_util.h"

#include <filesystem>
#include <span>
#include <system_error>

#include "kernels/status_macros.h"
#include "worker/data/digest.h"
#include "worker/data/file_io.h"

namespace sparsebalance {

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  SB_ASSIGN_OR_RETURN(data::PendingFile file, data::PendingFile::Create(path));
  SB_RETURN_IF_ERROR(file.Write(bytes));
  SB_RETURN_IF_ERROR(file.Sync());
  return file.Publish();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  SB_ASSIGN_OR_RETURN(const data::MappedFile file, data::MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::string Sha256Hex(std::string_view bytes) {
  data::Sha256 digest;
  digest.Add(bytes);
  return digest.Hex();
}

}  // namespace sparsebalance
