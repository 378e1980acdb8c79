// One random call of attention: shape, formats, sequences; its result on the GPU and the scalar
// oracle's.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "prefixd/cuda.h"
#include "tests/cuda/cases.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {

struct AttendCase {
  kernels::LayerShape layer;
  std::vector<quant::KvFormat> formats;
  uint32_t query_rows = 1, group = 1;
  uint32_t window = 0, sink_tokens = 0;
  float soft_cap = 0;
  float query_scale = 1;  // of the queries' standard deviation
  bool sinks = false;
  bool precise = false;
  uint32_t query_dtype = PREFIXD_F32;
  std::vector<std::vector<kernels::BlockShape>> sequences;
  bool share_pages = false;  // all sequences have the first one's pages, as many as they need
  std::vector<uint32_t> first_positions;
  uint32_t seed = 1;
};

// Draws a case: every format and layout that the GPU reads, dims 64 to 256, 1 to 8 rows, groups of
// 1 to 16, windows, sinks, soft-caps, uneven pages, partial pages, mixed chains, 1 to 3 sequences.
AttendCase RandomCase(uint32_t seed);
// The same with 9 to 160 rows, at places of a context that pages do not care about.
AttendCase RandomPrefillCase(uint32_t seed);
std::string ToString(const AttendCase& it);

// The layers of a case on the host, its queries as they were rounded, and what the oracle gives.
struct PreparedCase {
  AttendCase shape;
  std::vector<std::unique_ptr<kernels::PagedLayer>> layers;  // of each sequence
  std::vector<float> queries;                                // [sequence][row][head][dim]
  std::vector<float> sink_logits;
  std::vector<float> want;  // [sequence][row][head][value_dim]
};
PreparedCase Prepare(const AttendCase& it);

// The largest difference over the largest wanted value; infinite when there is a NaN.
double RelativeError(const std::vector<float>& got, const std::vector<float>& want);
// Root mean square of the error over that of the result.
double RelativeRms(const std::vector<float>& got, const std::vector<float>& want);

}  // namespace prefixd::cuda
