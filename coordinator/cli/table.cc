#include "coordinator/cli/table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace sparsebalance {
namespace {

// Characters of UTF-8: bytes that do not continue one.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) {
    if (cell.empty()) cell = "-";
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  widths.reserve(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = Width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, Width(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto append = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - Width(cell), ' ');
      if (c != 0) line += "  ";
      line += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  append([&](size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_) {
    append([&](size_t c) -> const std::string& { return row[c]; });
  }
  return text;
}

}  // namespace sparsebalance
