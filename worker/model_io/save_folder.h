// Writing a folder of files so that whoever reads it sees the old one or the whole new one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/model_io/tensor_source.h"

namespace sparsebalance::model_io {

// Whether ReplaceFolder may write there: it is not there yet, or it is a folder that holds nothing
// but files that `is_ours` knows by name. INVALID_ARGUMENT naming what stands in the way and that
// it is not part of `what`.
absl::Status CheckReplaceable(const std::string& folder,
                              const std::function<bool(const std::string&)>& is_ours,
                              const char* what);

// Lets `write` fill a folder aside and puts it in place once it is whole, instead of what was
// there. On an error the old folder is untouched.
absl::Status ReplaceFolder(const std::string& folder,
                           const std::function<absl::Status(const std::string& aside)>& write);

// Files of such a folder, synced to disk. RESOURCE_EXHAUSTED with the path where the disk is full.
absl::Status WriteText(const std::string& path, const std::string& text);
absl::Status WriteTensors(const std::string& path, const std::vector<TensorInfo>& tensors,
                          const TensorSource& source);

// The tensors as they will be written: in that type, or each in its own where there is none.
std::vector<TensorInfo> InType(std::vector<TensorInfo> tensors, std::optional<ElementType> type);

}  // namespace sparsebalance::model_io
