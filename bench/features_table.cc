// The table of features: every one has tests that `scripts/test -R features` runs, or a reason.
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

#include "bench/features.h"

namespace prefixd::bench {
namespace {

struct Family {
  const char* name;
  int last;
};
constexpr Family kFamilies[] = {{"S0", 9},  {"S1", 50}, {"S2", 25},
                                {"S3", 10}, {"S4", 18}, {"M", 7}};

// ID to its row's last cell.
std::map<std::string, std::string> ReadRows(std::istream& table) {
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(table, line);) {
    const size_t end = line.find(" | ");
    if (!absl::StartsWith(line, "| ") || end == std::string::npos) continue;
    const std::string last = line.substr(line.rfind(" | ") + 3);
    rows[line.substr(2, end - 2)] = std::string(absl::StripSuffix(last, " |"));
  }
  return rows;
}

}  // namespace

void FeaturesTable(Bench& bench) {
  const std::string path = absl::StrCat(PREFIXD_SOURCE_DIR, "/tests/features/FEATURES.md");
  std::ifstream file(path);
  if (!bench.Check(file.is_open(), "cannot read " + path)) return;
  const std::map<std::string, std::string> rows = ReadRows(file);
  uint64_t features = 0, tested = 0, reasons = 0;
  for (const Family& family : kFamilies) {
    for (int i = 1; i <= family.last; ++i) {
      ++features;
      const auto row = rows.find(absl::StrFormat("%s-%02d", family.name, i));
      if (row == rows.end()) continue;
      tested += absl::StrContains(row->second, "`");
      reasons += absl::StartsWith(row->second, "No test: ");
    }
  }
  bench.Judge({.name = "features in the table",
               .ours = absl::StrCat(tested, " name their tests, ", reasons, " a reason"),
               .reference = absl::StrCat(features, " features"),
               .measure = "missing",
               .seen = static_cast<double>(features - tested - reasons),
               .limit = 0,
               .runs = features});
}

}  // namespace prefixd::bench
