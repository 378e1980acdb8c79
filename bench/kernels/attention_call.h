// One attention call as the measurements make it: query rows at the end of a context, over block
// tables that take turns, checked against the scalar oracle.
//
// One thread.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/common/kv_pages.h"
#include "bench/common/timing.h"
#include "kernels/attention.h"

namespace prefixd::bench {

class AttentionCall {
 public:
  struct Options {
    PageOrder order = PageOrder::kCommit;
    uint32_t query_rows = 1;
    uint32_t query_heads = 32;
    uint32_t threads = 1;
    kernels::AttentionMode mode = kernels::AttentionMode::kFast;
    uint32_t query_seed = 3;
    size_t first_table = 0;  // calls that take turns over the same pages begin far apart
    uint32_t tokens = 0;     // of the context; 0 = all of the pages'
  };
  // `pages` must outlive this.
  AttentionCall(const KvPages& pages, const Options& options);

  // Over the next table.
  void Run() { RunOver(NextTable(), pages_.formats()); }
  quant::BlockTable NextTable() { return pages_.table(order_, next_++ % pages_.tables()); }
  void RunOver(quant::BlockTable table, std::span<const quant::KvFormat> formats);
  const std::vector<float>& out() const { return out_; }
  // Of every Run so far.
  const absl::Status& status() const { return status_; }
  // Relative RMS against exact attention on the dequantized values of one table, the worse one of
  // the first and the last query row; infinity after an error or a NaN. Slow.
  double Error();
  // What exact attention gives for table 0. Slow.
  std::vector<float> Exact();
  // Two products of every query row with every position that it sees.
  double flop() const;
  Side side(const std::string& name) {
    return {name, pages_.table_bytes(), [this] { Run(); }};
  }

 private:
  const KvPages& pages_;
  const PageOrder order_;
  kernels::AttentionShape shape_;
  std::vector<float> q_, out_;
  size_t next_;
  absl::Status status_;
};

// sqrt(sum (a - b)^2 / sum b^2); infinity when anything is not finite.
double RelativeRms(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace prefixd::bench
