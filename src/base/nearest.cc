#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace prefixd::base {

size_t EditDistance(const std::string& a, const std::string& b) {
  // rows[i % 3][j]: the distance of the first i letters of a and the first j of b.
  std::vector<std::vector<size_t>> rows(3, std::vector<size_t>(b.size() + 1));
  for (size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t>& row = rows[i % 3];
    const std::vector<size_t>& above = rows[(i - 1) % 3];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::string Nearest(const std::string& name, std::span<const std::string> known) {
  std::string nearest;
  size_t least = name.size() / 3 + 1;
  for (const std::string& one : known) {
    const size_t distance = EditDistance(name, one);
    if (distance < least) {
      least = distance;
      nearest = one;
    }
  }
  if (!nearest.empty() || name.size() < 3) return nearest;
  const auto found = std::ranges::find_if(
      known, [&](const std::string& one) { return one.find(name) != std::string::npos; });
  return found == known.end() ? "" : *found;
}

std::string DidYouMean(const std::string& name, std::span<const std::string> known,
                       const std::string& prefix) {
  const std::string nearest = Nearest(name, known);
  return nearest.empty() ? "" : "; did you mean " + prefix + nearest + "?";
}

}  // namespace prefixd::base
