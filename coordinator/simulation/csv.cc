#include "coordinator/simulation/csv.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sparsebalance::simulation {
namespace {

bool ParseNumber(const std::string& text, double& out) {
  return absl::SimpleAtod(text, &out) && std::isfinite(out);
}

}  // namespace

absl::StatusOr<NumberTable> ReadNumberTable(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, " cannot be opened"));
  NumberTable table;
  size_t columns = 0;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    absl::StripAsciiWhitespace(&line);
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> fields = absl::StrSplit(line, ',');
    for (std::string& field : fields) absl::StripAsciiWhitespace(&field);
    const bool first = columns == 0;
    if (first) columns = fields.size();
    if (fields.size() != columns) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": has ", fields.size(),
                                                     " fields, the lines before have ", columns));
    }
    double ignored = 0;
    if (first && !ParseNumber(fields[0], ignored)) {
      table.header = std::move(fields);
      continue;
    }
    std::vector<double>& row = table.rows.emplace_back(columns);
    table.lines.push_back(number);
    for (size_t c = 0; c < columns; ++c) {
      if (ParseNumber(fields[c], row[c])) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": column ", c + 1,
                       table.header.empty() ? "" : absl::StrCat(" (", table.header[c], ")"),
                       " is \"", fields[c], "\": expected a number"));
    }
  }
  if (table.rows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds no line of numbers"));
  }
  return table;
}

}  // namespace sparsebalance::simulation
