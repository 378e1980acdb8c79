#include "bench/kernels/attention_call.h"

#include <algorithm>
#include <cmath>

namespace prefixd::bench {

double RelativeRms(const std::vector<float>& a, const std::vector<float>& b) {
  double wrong = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    wrong += difference * difference;
    all += static_cast<double>(b[i]) * b[i];
  }
  const double error = std::sqrt(wrong / all);
  return std::isfinite(error) ? error : INFINITY;
}

AttentionCall::AttentionCall(const KvPages& pages, const Options& options)
    : pages_(pages),
      order_(options.order),
      shape_{.query_rows = options.query_rows,
             .query_heads = options.query_heads,
             .kv_heads = pages.shape().kv_heads,
             .key_dim = pages.shape().dim,
             .value_dim = pages.shape().dim,
             .first_position =
                 (options.tokens == 0 ? pages.shape().tokens : options.tokens) - options.query_rows,
             .scale = 1 / std::sqrt(static_cast<float>(pages.shape().dim)),
             .threads = options.threads,
             .mode = options.mode},
      q_(NormalFloats(size_t{options.query_rows} * options.query_heads * pages.shape().dim,
                      options.query_seed)),
      out_(q_.size()),
      next_(options.first_table) {}

void AttentionCall::RunOver(quant::BlockTable table, std::span<const quant::KvFormat> formats) {
  status_.Update(kernels::Attend(table, formats, q_.data(), out_.data(), shape_));
}

std::vector<float> AttentionCall::Exact() {
  std::vector<float> exact(out_.size());
  status_.Update(kernels::AttendScalar(pages_.table(order_, 0), pages_.formats(), q_.data(),
                                       exact.data(), shape_));
  return exact;
}

double AttentionCall::Error() {
  const quant::BlockTable table = pages_.table(order_, 0);
  RunOver(table, pages_.formats());
  const size_t row = size_t{shape_.query_heads} * shape_.key_dim;
  double worst = 0;
  for (const uint32_t i : {0u, shape_.query_rows - 1}) {
    kernels::AttentionShape one = shape_;
    one.query_rows = 1;
    one.first_position += i;
    std::vector<float> exact(row);
    status_.Update(
        kernels::AttendScalar(table, pages_.formats(), q_.data() + i * row, exact.data(), one));
    const auto* const from = out_.data() + i * row;
    worst = std::max(worst, RelativeRms({from, from + row}, exact));
    if (shape_.query_rows == 1) break;
  }
  return status_.ok() ? worst : INFINITY;
}

double AttentionCall::flop() const {
  const double seen = shape_.first_position + (shape_.query_rows + 1) / 2.0;
  return 4.0 * shape_.query_rows * shape_.query_heads * shape_.key_dim * seen;
}

}  // namespace prefixd::bench
