// What a workload works with: its sizes, its checks and the figures it reports.
//
// A workload verifies its results first (Check), then times, then adds rows of figures. Not
// thread-safe: one workload, one thread.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace prefixd::bench {

// The unit stands last in the name and decides how people see it: "median_us", "rate_bytes_per_s",
// "peak_bytes", "of_memcpy_ratio", "spread_percent"; anything else is a plain number.
struct Figure {
  std::string name;
  double value = 0;
};

struct Row {
  std::string name;
  std::vector<Figure> figures;
};

class Bench {
 public:
  struct Options {
    std::string workload;
    bool smoke = false;
    std::string directory;  // existing; for sockets and the SSD tier
    bool quiet = false;     // nothing on stdout: somebody wants JSON at the end
  };
  explicit Bench(Options options);

  bool smoke() const { return options_.smoke; }
  const std::string& workload() const { return options_.workload; }
  const std::string& directory() const { return options_.directory; }

  // The size for this run, which the report names.
  uint64_t Parameter(const std::string& name, uint64_t smoke, uint64_t real);
  // False, remembered and printed when `holds` is false: the run will fail.
  bool Check(bool holds, const std::string& what);
  // Prints and keeps.
  void Add(Row row);

  const std::vector<Figure>& parameters() const { return parameters_; }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  const Options options_;
  std::vector<Figure> parameters_;
  std::vector<Row> rows_;
  std::vector<std::string> failures_;
};

// "median 12.3 us", "of memcpy 0.52x".
std::string ToText(const Figure& figure);

}  // namespace prefixd::bench
