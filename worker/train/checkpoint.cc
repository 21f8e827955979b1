#include "worker/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/data/file_io.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

constexpr char kPrefix[] = "step-";

// All ranks learn whether any of them failed; the code of the first failing rank's own error is
// known to that rank only.
absl::Status Agree(Communicator& comm, const absl::Status& mine) {
  std::array<int64_t, 1> failed_rank = {mine.ok() ? -1 : comm.rank()};
  if (absl::Status status = comm.AllReduceMaxInt64(failed_rank); !status.ok()) return status;
  if (failed_rank[0] < 0) return absl::OkStatus();
  if (!mine.ok()) return mine;
  return absl::UnavailableError(
      absl::StrCat("rank ", failed_rank[0], " could not write its part of the checkpoint"));
}

}  // namespace

CheckpointStore::CheckpointStore(std::string folder, uint32_t kept,
                                 std::function<void(const std::string&)> log)
    : folder_(std::move(folder)), kept_(std::max<uint32_t>(kept, 1)), log_(std::move(log)) {}

absl::Status CheckpointStore::WriteTensors(const std::string& folder, const TrainPosition& position,
                                           const std::vector<TensorView>& model,
                                           const std::vector<TensorView>& optimizer) const {
  CheckpointManifest manifest;
  manifest.position = position;
  for (const auto& [name, tensors] :
       {std::pair(kCheckpointModelFile, &model), std::pair(kCheckpointOptimizerFile, &optimizer)}) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (absl::Status status = WriteTensorFile(path, *tensors); !status.ok()) return status;
    absl::StatusOr<std::string> written = ReadFile(path);
    if (!written.ok()) return written.status();
    manifest.files[name] = Sha256Hex(*written);
  }
  return WriteFile(absl::StrCat(folder, "/", kCheckpointManifestFile), FormatManifest(manifest));
}

absl::Status CheckpointStore::Save(Communicator& comm, const TrainPosition& position,
                                   const std::vector<TensorView>& model,
                                   const std::vector<TensorView>& optimizer,
                                   const CoverageNotes& notes) {
  const std::string final_folder =
      absl::StrCat(folder_, "/", kPrefix, absl::StrFormat("%08d", position.next_step));
  const std::string temporary = final_folder + ".partial";
  absl::Status status;
  std::error_code error;
  if (comm.rank() == 0) {
    std::filesystem::remove_all(temporary, error);
    std::filesystem::create_directories(temporary, error);
    if (error) {
      status =
          absl::UnavailableError(absl::StrCat("cannot create ", temporary, ": ", error.message()));
    } else {
      status = WriteTensors(temporary, position, model, optimizer);
    }
  }
  if (status = Agree(comm, status); !status.ok()) return status;

  status = notes.Save(absl::StrCat(temporary, "/coverage-rank-", comm.rank(), ".bin"));
  if (status = Agree(comm, status); !status.ok()) return status;

  if (comm.rank() == 0) {
    // A run that was resumed from an earlier step comes by here again.
    std::filesystem::remove_all(final_folder, error);
    std::filesystem::rename(temporary, final_folder, error);
    status = error ? absl::UnavailableError(
                         absl::StrCat("cannot finish ", final_folder, ": ", error.message()))
                   : data::SyncFolderOf(final_folder);
    if (status.ok()) RemoveOld();
  }
  return Agree(comm, status);
}

std::vector<std::string> CheckpointStore::Folders() const {
  std::vector<std::string> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered =
        name.rfind(kPrefix, 0) == 0 &&
        name.find_first_not_of("0123456789", sizeof(kPrefix) - 1) == std::string::npos;
    if (numbered && entry.is_directory(error)) folders.push_back(entry.path().string());
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

void CheckpointStore::RemoveOld() const {
  const std::vector<std::string> folders = Folders();
  for (size_t i = kept_; i < folders.size(); ++i) {
    std::error_code error;
    std::filesystem::remove_all(folders[i], error);
    if (error) log_(absl::StrCat("cannot remove old checkpoint ", folders[i]));
  }
}

absl::StatusOr<Checkpoint> CheckpointStore::Load(const std::string& folder) const {
  absl::StatusOr<CheckpointManifest> manifest = ReadManifest(folder);
  if (!manifest.ok()) return manifest.status();
  Checkpoint checkpoint;
  checkpoint.folder = folder;
  checkpoint.position = std::move(manifest->position);
  for (const char* name : {kCheckpointModelFile, kCheckpointOptimizerFile}) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<std::string> bytes = ReadFile(path);
    if (!bytes.ok()) return bytes.status();
    if (Sha256Hex(*bytes) != manifest->files[name]) {
      return absl::DataLossError(absl::StrCat("the checksum of ", name, " does not fit"));
    }
    absl::StatusOr<TensorFile> tensors = TensorFile::Read(path);
    if (!tensors.ok()) return tensors.status();
    (name == kCheckpointModelFile ? checkpoint.model : checkpoint.optimizer) = *std::move(tensors);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().rfind("coverage-", 0) == 0) {
      checkpoint.coverage_files.push_back(entry.path().string());
    }
  }
  std::sort(checkpoint.coverage_files.begin(), checkpoint.coverage_files.end());
  return checkpoint;
}

absl::StatusOr<std::optional<Checkpoint>> CheckpointStore::LoadNewest() const {
  const std::vector<std::string> folders = Folders();
  for (const std::string& folder : folders) {
    absl::StatusOr<Checkpoint> checkpoint = Load(folder);
    if (checkpoint.ok()) return std::optional<Checkpoint>(*std::move(checkpoint));
    log_(absl::StrCat("checkpoint ", folder, " is passed over: ", checkpoint.status().message()));
  }
  if (!folders.empty()) {
    return absl::DataLossError(absl::StrCat("none of the ", folders.size(), " checkpoints in ",
                                            folder_, " is whole; remove them to start anew"));
  }
  return std::optional<Checkpoint>();
}

}  // namespace sparsebalance
