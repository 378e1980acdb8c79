// Aligned columns of text.
//
// A value; not for concurrent use.
#pragma once
#include <string>
#include <vector>

namespace prefixd::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Requires: one cell for each column. Cells are made printable.
  void AddRow(std::vector<std::string> cells);

  // A line of titles (left out when all are empty) and one line a row, two blanks between columns,
  // each line behind `indent` blanks and without blanks at its end.
  std::string Text(size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace prefixd::cli
