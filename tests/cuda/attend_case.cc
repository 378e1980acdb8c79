#include "tests/cuda/attend_case.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "quant/codec.h"
#include "quant/unit.h"

namespace prefixd::cuda {
namespace {

using quant::Codec;
using quant::Dtype;
using quant::TensorFormat;

Dtype AnyDtype(Draw& draw) { return draw.OneOf({Dtype::kF16, Dtype::kBf16, Dtype::kF32}); }

TensorFormat AnyFormat(Draw& draw, uint32_t dim, bool value) {
  for (;;) {
    TensorFormat format;
    switch (draw.Below(8)) {
      case 0:
        format = quant::RawFormat(AnyDtype(draw));
        if (value && draw.Once(3)) format = quant::Transposed(format);
        break;
      case 1:
      case 2:
        format = quant::GgmlFormat(
            draw.OneOf({Codec::kQ8_0, Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0, Codec::kQ5_1}));
        break;
      default:
        format = quant::MlxAffineFormat(draw.OneOf<uint8_t>({2, 3, 4, 5, 6, 8}),
                                        draw.OneOf<uint16_t>({32, 64, 128}), AnyDtype(draw));
    }
    if (draw.Once(2)) format = quant::Tiled(format);
    if (quant::Validate(format, dim).ok()) return format;
  }
}

// A format that tensor cores have a kernel for.
quant::KvFormat FastFormat(Draw& draw) {
  const bool tiled = draw.Once(2);
  const auto bits = draw.OneOf<std::pair<int, int>>({{8, 8}, {8, 4}, {4, 4}});
  quant::KvFormat format;
  if (draw.Once(3)) {
    format = {quant::GgmlFormat(bits.first == 8 ? Codec::kQ8_0 : Codec::kQ4_0),
              quant::GgmlFormat(bits.second == 8 ? Codec::kQ8_0 : Codec::kQ4_0)};
    return {quant::Tiled(format.key), quant::Tiled(format.value)};
  }
  const Dtype dtype = draw.OneOf({Dtype::kF16, Dtype::kBf16});
  format = {quant::MlxAffineFormat(static_cast<uint8_t>(bits.first), 64, dtype),
            quant::MlxAffineFormat(static_cast<uint8_t>(bits.second), 64, dtype)};
  if (tiled) format = {quant::Tiled(format.key), quant::Tiled(format.value)};
  return format;
}

std::vector<kernels::BlockShape> AnyBlocks(Draw& draw, uint32_t tokens, uint32_t formats) {
  const uint32_t usual = draw.OneOf({16u, 32u, 64u, 64u, 64u, 128u});
  const bool uneven = draw.Once(4);
  std::vector<kernels::BlockShape> blocks;
  uint32_t format = 0;
  for (uint32_t done = 0; done < tokens;) {
    const uint32_t slots = uneven ? draw.From(1, 81) : usual;
    const uint32_t used = std::min(tokens - done, uneven ? draw.From(1, slots + 1) : slots);
    if (draw.Once(3)) format = draw.Below(formats);
    blocks.push_back({.tokens = used, .page_tokens = slots, .format = format});
    done += used;
  }
  return blocks;
}

float Rounded(uint32_t dtype, float x) {
  if (dtype == PREFIXD_F16) return quant::HalfToFloat(quant::FloatToHalf(x));
  if (dtype == PREFIXD_BF16) return quant::Bf16ToFloat(quant::FloatToBf16(x));
  return x;
}

}  // namespace

AttendCase RandomCase(uint32_t seed) {
  Draw draw(seed * 2654435761u + 1);
  AttendCase it;
  it.seed = seed;
  const bool fast = draw.Once(2);
  if (fast) {
    it.layer = {.kv_heads = draw.From(1, 5), .key_dim = 128, .value_dim = 128};
  } else {
    const uint32_t dim = draw.OneOf({64u, 80u, 96u, 128u, 256u});
    it.layer = {.kv_heads = draw.From(1, 4),
                .key_dim = dim,
                .value_dim = draw.Once(4) ? draw.OneOf({64u, 128u, 256u}) : dim};
  }
  for (uint32_t i = 0, count = draw.Once(4) ? 3 : 1; i < count; ++i) {
    const bool one_more_fast = fast && (i == 0 || draw.Once(2));
    it.formats.push_back(one_more_fast
                             ? FastFormat(draw)
                             : quant::KvFormat{AnyFormat(draw, it.layer.key_dim, false),
                                               AnyFormat(draw, it.layer.value_dim, true)});
  }
  it.query_rows = draw.Once(2) ? 1 : draw.From(1, 9);
  it.group = draw.OneOf({1u, 2u, 3u, 4u, 4u, 5u, 7u, 8u, 12u, 16u});
  if (draw.Once(3)) {
    it.window = draw.From(1, 201);
    it.sink_tokens = draw.Once(2) ? 0 : draw.Below(70);
  }
  if (draw.Once(5)) it.soft_cap = draw.OneOf({1.5f, 20.f, 50.f});
  it.sinks = draw.Once(5);
  it.precise = draw.Once(6);
  it.query_scale = draw.OneOf({1.f, 1.f, 0.f, 8.f, 1e-3f});
  it.query_dtype = draw.OneOf<uint32_t>({PREFIXD_F32, PREFIXD_F16, PREFIXD_BF16});
  for (uint32_t s = 0, count = draw.From(1, 4); s < count; ++s) {
    const uint32_t tokens = it.query_rows + draw.Below(draw.Once(8) ? 900 : 200);
    it.sequences.push_back(AnyBlocks(draw, tokens, static_cast<uint32_t>(it.formats.size())));
    const uint32_t most = tokens - it.query_rows;
    it.first_positions.push_back(draw.Once(2) ? most : most - std::min(most, draw.Below(20)));
  }
  return it;
}

AttendCase RandomPrefillCase(uint32_t seed) {
  AttendCase it = RandomCase(seed);
  Draw draw(seed * 2246822519u + 3);
  if (it.layer.key_dim > 128 && draw.Once(2)) {
    it.layer.key_dim = it.layer.value_dim = 128;
    it.formats.assign(1, FastFormat(draw));
  }
  it.query_rows = draw.From(9, draw.Once(4) ? 161 : 50);
  it.group = draw.OneOf({1u, 2u, 3u, 4u, 4u, 7u, 8u, 16u});
  it.sequences.clear();
  it.first_positions.clear();
  for (uint32_t s = 0, count = draw.From(1, 4); s < count; ++s) {
    const uint32_t tokens = it.query_rows + draw.Below(draw.Once(4) ? 700 : 200);
    it.sequences.push_back(AnyBlocks(draw, tokens, static_cast<uint32_t>(it.formats.size())));
    const uint32_t most = tokens - it.query_rows;
    it.first_positions.push_back(draw.Once(2) ? most : most - std::min(most, draw.Below(70)));
  }
  return it;
}

std::string ToString(const AttendCase& it) {
  std::ostringstream to;
  to << "seed " << it.seed << ": dims " << it.layer.key_dim << "/" << it.layer.value_dim << ", "
     << it.layer.kv_heads << " kv heads, group " << it.group << ", rows " << it.query_rows
     << ", window " << it.window << "/" << it.sink_tokens << ", cap " << it.soft_cap << ", sinks "
     << it.sinks << ", precise " << it.precise << ", dtype " << it.query_dtype << ", scale "
     << it.query_scale << ", formats";
  for (const auto& format : it.formats) to << " " << quant::ToString(format);
  for (size_t s = 0; s < it.sequences.size(); ++s) {
    to << "; first " << it.first_positions[s] << ", blocks";
    for (const auto& block : it.sequences[s]) {
      to << " " << block.tokens << "/" << block.page_tokens << ":" << block.format;
    }
  }
  return to.str();
}

PreparedCase Prepare(const AttendCase& it) {
  PreparedCase ready;
  ready.shape = it;
  const uint32_t heads = it.layer.kv_heads * it.group;
  const size_t row_floats = size_t{it.query_rows} * heads * it.layer.key_dim;
  for (const float x : kernels::RandomFloats(row_floats * it.sequences.size(), it.seed + 77)) {
    ready.queries.push_back(Rounded(it.query_dtype, x * it.query_scale));
  }
  if (it.sinks) {
    ready.sink_logits = kernels::RandomFloats(heads, it.seed + 5);
    ready.sink_logits[0] = -INFINITY;
  }
  for (size_t s = 0; s < it.sequences.size(); ++s) {
    ready.layers.push_back(std::make_unique<kernels::PagedLayer>(
        it.layer, it.formats, it.sequences[s],
        it.seed + (it.share_pages ? 0 : static_cast<uint32_t>(s) * 1000)));
    const kernels::AttentionShape shape{
        .query_rows = it.query_rows,
        .query_heads = heads,
        .kv_heads = it.layer.kv_heads,
        .key_dim = it.layer.key_dim,
        .value_dim = it.layer.value_dim,
        .first_position = it.first_positions[s],
        .scale = 1.0f / std::sqrt(static_cast<float>(it.layer.key_dim)),
        .window = it.window,
        .sink_tokens = it.sink_tokens,
        .soft_cap = it.soft_cap,
        .sink_logits = it.sinks ? ready.sink_logits.data() : nullptr};
    std::vector<float> want(size_t{it.query_rows} * heads * it.layer.value_dim);
    EXPECT_TRUE(kernels::AttendScalar(ready.layers[s]->table(), ready.layers[s]->formats(),
                                      ready.queries.data() + s * row_floats, want.data(), shape)
                    .ok());
    ready.want.insert(ready.want.end(), want.begin(), want.end());
  }
  return ready;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double largest = 1e-30, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::fmax(largest, std::fabs(double{want[i]}));
    const double difference = std::fabs(double{got[i]} - double{want[i]});
    if (std::isnan(difference)) return INFINITY;
    error = std::fmax(error, difference);
  }
  return error / largest;
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, all = 1e-60;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    all += std::pow(double{want[i]}, 2);
  }
  return std::isnan(error) ? INFINITY : std::sqrt(error / all);
}

}  // namespace prefixd::cuda
