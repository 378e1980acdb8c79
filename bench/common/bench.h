// What a workload works with: its sizes, its checks and the figures it reports.
//
// A workload verifies its results first (Check), then times, then adds rows of figures. Not
// thread-safe: one workload, one thread.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/common/kv_cache_options.h"

namespace prefixd::bench {

// The unit stands last in the name and decides how people see it: "median_us", "rate_bytes_per_s",
// "peak_bytes", "of_memcpy_ratio", "spread_percent"; anything else is a plain number.
struct Figure {
  std::string name;
  double value = 0;
};

// Returns a count or a size as the value of a figure.
inline double Number(uint64_t value) { return static_cast<double>(value); }

struct Row {
  std::string name;
  std::vector<Figure> figures;
};

// A promise of the project and what this run saw of it. It reports, it gates nothing.
struct Target {
  std::string name;                       // "acquire 2048"
  std::string ours = {}, reference = {};  // what was measured, with units: "p50 131 us"
  std::string measure = "ratio";          // what `seen` is
  double seen = 0;
  bool at_most = true;  // else at least
  double limit = 0;
  std::string unit = {};  // of seen and limit, as it is printed behind them
  uint64_t runs = 0;
  double spread_percent = 0;  // of what `seen` is the median of; 0 = one value
  bool Holds() const { return at_most ? seen <= limit : seen >= limit; }
};
// "acquire 2048: p50 131 us, empty RPC p50 104 us, ratio 1.26, target <= 1.5, holds (...)".
std::string ToText(const Target& target);

class Bench {
 public:
  struct Options {
    std::string workload;
    bool smoke = false;
    bool quick = false;                  // fewer counts, same targets
    uint64_t seconds = 0;                // of hostile; 0: as the size says
    uint64_t workers = 0;                // of hits; 0: all cores but two
    bool targets_only = false;           // of text: the targets alone
    std::vector<std::string> only = {};  // families of figures; empty = all
    std::string directory;               // existing; for sockets and the SSD tier
    std::string arena_folder = {};       // a tmpfs, for the arena of kernels; empty: see kernels.cc
    KvCacheOptions kv_cache = {};
    std::string model = {}, corpus = {};  // of quality; empty = the shipped ones
    std::string trace = {};               // of trace: a name or a file; empty = the shipped ones
    bool quiet = false;                   // nothing on stdout: somebody wants JSON at the end
  };
  explicit Bench(Options options);

  bool smoke() const { return options_.smoke; }
  bool quick() const { return options_.quick; }
  uint64_t seconds() const { return options_.seconds; }
  uint64_t workers() const { return options_.workers; }
  bool Wants(const std::string& family) const;
  const std::string& workload() const { return options_.workload; }
  const std::string& directory() const { return options_.directory; }
  const std::string& model() const { return options_.model; }
  const std::string& corpus() const { return options_.corpus; }
  const std::string& trace() const { return options_.trace; }
  const std::string& arena_folder() const { return options_.arena_folder; }
  const KvCacheOptions& kv_cache() const { return options_.kv_cache; }
  bool targets_only() const { return options_.targets_only; }

  // The size for this run, which the report names.
  uint64_t Parameter(const std::string& name, uint64_t smoke, uint64_t real) {
    return Parameter(name, smoke, real, real);
  }
  uint64_t Parameter(const std::string& name, uint64_t smoke, uint64_t quick, uint64_t real);
  // False, remembered and printed when `holds` is false: the run will fail.
  bool Check(bool holds, const std::string& what);
  // Prints and keeps.
  void Add(Row row);
  void Judge(Target target);
  // A sentence for the reader: what was left out, and why; or a figure that has no target.
  void Note(const std::string& text);

  const std::vector<Figure>& parameters() const { return parameters_; }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Target>& targets() const { return targets_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  bool ShowsRows() const { return !options_.quiet && !options_.targets_only; }

  const Options options_;
  std::vector<Figure> parameters_;
  std::vector<Row> rows_;
  std::vector<Target> targets_;
  std::vector<std::string> notes_;
  std::vector<std::string> failures_;
};

// "median 12.3 us", "of memcpy 0.52x".
std::string ToText(const Figure& figure);

// Three figures, and the unit that fits: "131 us", "1.25 GB/s", "2.00 GiB".
std::string MicrosText(double us);
std::string RateText(double bytes, double us);
std::string BytesText(double bytes);

}  // namespace prefixd::bench
