#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/common/check_attention.h"
#include "quant/unit.h"

namespace prefixd::kernels {
namespace {

// Reads one stored row as attention does: widens MLX's scales and biases to float first, so that
// the codec rounds to float and not to the format's dtype.
void ReadRow(const quant::TensorFormat& format, const quant::ConstRowPlace& place,
             std::span<float> row) {
  if (format.codec != quant::Codec::kMlxAffine) return quant::DequantizeRow(format, place, row);
  const size_t groups = row.size() / format.group_size;
  std::vector<float> parameters(2 * groups);
  quant::WidenToFloat(format.dtype, place.scales, groups, parameters.data());
  quant::WidenToFloat(format.dtype, place.biases, groups, parameters.data() + groups);
  const std::byte* widened = reinterpret_cast<const std::byte*>(parameters.data());
  quant::DequantizeRow(
      quant::MlxAffineFormat(format.bits, format.group_size, quant::Dtype::kF32),
      {.codes = place.codes, .scales = widened, .biases = widened + groups * sizeof(float)}, row);
}

// Returns all of one kv head's K or V, [tokens][dim].
std::vector<float> ReadHead(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                            const AttentionShape& shape, uint32_t kv_head, bool values) {
  const uint32_t dim = values ? shape.value_dim : shape.key_dim;
  std::vector<float> rows;
  for (const quant::BlockTableEntry& entry : table) {
    const quant::KvFormat& pair = formats[entry.format];
    const uint64_t key_bytes =
        quant::LayoutOfUnit(pair.key, shape.key_dim, entry.page_tokens).unit_bytes;
    const quant::TensorFormat& format = values ? pair.value : pair.key;
    const quant::UnitShape stored{.format = format,
                                  .side = values ? quant::Side::kValue : quant::Side::kKey,
                                  .dim = dim,
                                  .page_tokens = entry.page_tokens};
    const std::byte* unit = entry.units + (values ? shape.kv_heads * key_bytes : 0) +
                            kv_head * quant::LayoutOf(stored).unit_bytes;
    const quant::UnitShape in_rows{.format = quant::InRows(format),
                                   .side = stored.side,
                                   .dim = dim,
                                   .page_tokens = std::max(1u, entry.tokens)};
    const quant::UnitLayout layout = quant::LayoutOf(in_rows);
    std::vector<std::byte> copy(layout.unit_bytes);
    quant::CopyTokens({stored, unit, 0}, {in_rows, copy.data(), 0}, entry.tokens);
    for (uint32_t t = 0; t < entry.tokens; ++t) {
      rows.resize(rows.size() + dim);
      ReadRow(format, quant::RowOf(std::as_const(copy).data(), layout, in_rows.format, dim, t),
              std::span(rows).last(dim));
    }
  }
  return rows;
}

struct HeadRows {
  const std::vector<float>& keys;
  const std::vector<float>& values;
};

// Returns the positions that the row at `position` sees.
std::vector<size_t> SeenFrom(const AttentionShape& shape, size_t position) {
  std::vector<size_t> seen;
  for (size_t t = 0; t <= position; ++t) {
    if (shape.window == 0 || position - t < shape.window || t < shape.sink_tokens)
      seen.push_back(t);
  }
  return seen;
}

double Score(const float* q, const float* key, const AttentionShape& shape) {
  double dot = 0;
  for (size_t d = 0; d < shape.key_dim; ++d) dot += double{q[d]} * double{key[d]};
  const double score = dot * double{shape.scale};
  const double cap = double{shape.soft_cap};
  return cap == 0 ? score : cap * std::tanh(score / cap);
}

// sink: the score of a token without a value.
void AttendRow(const HeadRows& head, const AttentionShape& shape, const std::vector<size_t>& seen,
               double sink, const float* q, float* out) {
  std::vector<double> weights;
  double max = sink;
  for (const size_t t : seen) {
    weights.push_back(Score(q, &head.keys[t * shape.key_dim], shape));
    max = std::fmax(max, weights.back());
  }
  double sum = std::exp(sink - max);
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (size_t d = 0; d < shape.value_dim; ++d) {
    double total = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      total += weights[i] * double{head.values[seen[i] * shape.value_dim + d]};
    }
    out[d] = static_cast<float>(total / sum);
  }
}

}  // namespace

absl::Status AttendScalar(quant::BlockTable table, std::span<const quant::KvFormat> formats,
                          const float* q, float* out, const AttentionShape& asked) {
  PREFIXD_ASSIGN_OR_RETURN(const AttentionShape shape,
                           CheckAttention(table, formats, q, out, asked));
  const uint32_t group = shape.query_heads / shape.kv_heads;
  for (uint32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
    const std::vector<float> keys = ReadHead(table, formats, shape, kv_head, /*values=*/false);
    const std::vector<float> values = ReadHead(table, formats, shape, kv_head, /*values=*/true);
    for (uint32_t row = 0; row < shape.query_rows; ++row) {
      const std::vector<size_t> seen = SeenFrom(shape, size_t{shape.first_position} + row);
      for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const double sink = shape.sink_logits != nullptr ? double{shape.sink_logits[head]}
                                                         : -std::numeric_limits<double>::infinity();
        AttendRow({keys, values}, shape, seen, sink,
                  q + row * shape.query_row_stride + head * shape.query_head_stride,
                  out + row * shape.out_row_stride + head * shape.out_head_stride);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace prefixd::kernels
