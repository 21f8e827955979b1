// The files of the status page, built into the program (cmake/EmbedFiles.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace sparsebalance {

struct EmbeddedFile {
  std::string_view name;  // without a folder
  std::string_view body;
  std::string_view etag;  // with its quotes
};

const std::vector<EmbeddedFile>& EmbeddedFiles();

}  // namespace sparsebalance
