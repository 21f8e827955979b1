// Tables of numbers from text files, with errors that name line and column.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance::simulation {

struct NumberTable {
  std::vector<std::string> header;        // empty where the first line holds numbers
  std::vector<std::vector<double>> rows;  // as long as the header, or as the first row
  std::vector<int> lines;                 // [row] its line in the file, from 1
};

// Comma-separated, finite numbers; blank lines and lines that begin with '#' are passed over.
// Errors start with "PATH:LINE: "; NOT_FOUND where the file cannot be opened, INVALID_ARGUMENT
// where a field is no number, a row has too many or too few, or there is no row.
absl::StatusOr<NumberTable> ReadNumberTable(const std::string& path);

}  // namespace sparsebalance::simulation
