#include "worker/model_io/save_folder.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/data/file_io.h"
#include "worker/model_io/safetensors.h"

namespace sparsebalance::model_io {
namespace {

namespace fs = std::filesystem;

// Tells readers how tensors are laid out; transformers refuses files without it.
const std::map<std::string, std::string>& Metadata() {
  static const auto* const metadata = new std::map<std::string, std::string>{{"format", "pt"}};
  return *metadata;
}

absl::Status FolderError(const std::string& path, const char* doing, const std::error_code& error) {
  return data::SystemError(error.value(), path, doing);
}

// Puts `whole` in the place of `folder`. Where the folder is there, there is a moment in which it
// is under another name; a crash then leaves it as FOLDER.old.<pid>.
absl::Status PutInPlace(const std::string& whole, const std::string& folder) {
  std::error_code error;
  const std::string old = absl::StrCat(folder, ".old.", getpid());
  const bool replaces = fs::exists(folder, error);
  if (replaces) fs::rename(folder, old, error);
  if (error) return FolderError(folder, "cannot move aside", error);
  fs::rename(whole, folder, error);
  if (error) {
    const std::error_code reason = error;
    if (replaces) fs::rename(old, folder, error);
    return FolderError(folder, "cannot rename to it", reason);
  }
  if (replaces) fs::remove_all(old, error);
  return data::SyncFolderOf(folder);
}

}  // namespace

absl::Status CheckReplaceable(const std::string& folder,
                              const std::function<bool(const std::string&)>& is_ours,
                              const char* what) {
  std::error_code error;
  if (!fs::exists(folder, error)) return absl::OkStatus();
  if (!fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " is there and is not a folder"));
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_ours(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder, " holds ", name, ", which is not part of ", what, "; name another folder"));
    }
  }
  if (error) return FolderError(folder, "cannot list", error);
  return absl::OkStatus();
}

absl::Status ReplaceFolder(const std::string& given,
                           const std::function<absl::Status(const std::string& aside)>& write) {
  // Without a slash at its end, so that names beside it can be made from it.
  std::string folder = given;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const std::string partial = absl::StrCat(folder, ".partial.", getpid());
  std::error_code error;
  fs::remove_all(partial, error);
  fs::create_directories(partial, error);
  if (error) return FolderError(partial, "cannot create", error);
  absl::Status status = write(partial);
  if (status.ok()) status = PutInPlace(partial, folder);
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  SB_ASSIGN_OR_RETURN(data::PendingFile file, data::PendingFile::Create(path));
  SB_RETURN_IF_ERROR(file.Write(text));
  SB_RETURN_IF_ERROR(file.Sync());
  return file.Publish();
}

absl::Status WriteTensors(const std::string& path, const std::vector<TensorInfo>& tensors,
                          const TensorSource& source) {
  SB_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(path, tensors, Metadata()));
  std::vector<float> values;
  for (const TensorInfo& tensor : tensors) {
    values.resize(tensor.elements());
    SB_RETURN_IF_ERROR(source.read(tensor, values));
    SB_RETURN_IF_ERROR(writer.Add(values));
  }
  return writer.Finish();
}

std::vector<TensorInfo> InType(std::vector<TensorInfo> tensors, std::optional<ElementType> type) {
  for (TensorInfo& tensor : tensors) {
    tensor.type = type.value_or(tensor.type);
    tensor.begin = 0;
    tensor.end = TensorBytes(tensor.type, tensor.shape).value_or(0);
  }
  return tensors;
}

}  // namespace sparsebalance::model_io
