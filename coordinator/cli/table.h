// Aligned columns of text for terminals.
//
//   Table table({{"JOB"}, {"STEP MS", Align::kRight}});
//   table.AddRow({"default/a", "12.5"});
//   std::cout << table.ToString();
#pragma once

#include <string>
#include <vector>

namespace sparsebalance {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns; an empty cell is shown as "-".
  void AddRow(std::vector<std::string> cells);

  // Two spaces between columns, none at the end of a line; widths count characters, not bytes.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sparsebalance
