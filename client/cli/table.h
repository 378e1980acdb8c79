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

  // Adds a row, with its cells made printable. Requires: one cell for each column.
  void AddRow(std::vector<std::string> cells);

  // Returns a line of titles (left out if all are empty) and one line for each row. Two blanks
  // separate columns. Each line begins with `indent` blanks and ends without blanks.
  std::string Text(size_t indent = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace prefixd::cli
