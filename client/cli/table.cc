#include "client/cli/table.h"

#include <algorithm>
#include <cassert>

#include "client/cli/units.h"

namespace prefixd::cli {
namespace {

// Returns the number of UTF-8 characters, which is the width that a terminal shows.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  assert(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = PrintableText(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Text(size_t indent) const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(Width(titles[c]));
    for (const std::vector<std::string>& row : rows_) {
      widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line(indent, ' ');
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string blanks(widths[c] - Width(cells[c]), ' ');
      if (c > 0) line += "  ";
      line += columns_[c].align == Align::kRight ? blanks + cells[c] : cells[c] + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  const bool titled = std::any_of(titles.begin(), titles.end(),
                                  [](const std::string& title) { return !title.empty(); });
  if (titled) add_line(titles);
  for (const std::vector<std::string>& row : rows_) add_line(row);
  return text;
}

}  // namespace prefixd::cli
