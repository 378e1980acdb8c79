// Layers whose values are the first elements of their keys (MLA): stored, loaded and attended on.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "quant/codec.h"
#include "quant/unit.h"
#include "tests/cuda/cases.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::cuda {
namespace {

using quant::Codec;
using quant::Dtype;

// Keys of one head and sequence, as pages, and as the pages' formats give them back.
class Latents {
 public:
  Latents(std::vector<quant::TensorFormat> formats, uint32_t dim,
          std::vector<kernels::BlockShape> blocks, uint32_t seed)
      : formats_(std::move(formats)), dim_(dim), blocks_(std::move(blocks)) {
    std::vector<size_t> offsets;
    for (const kernels::BlockShape& block : blocks_) {
      const quant::UnitShape shape = ShapeOf(block);
      offsets.push_back(bytes_.size());
      bytes_.resize(bytes_.size() + quant::LayoutOf(shape).unit_bytes, std::byte{0xff});
      std::byte* const unit = bytes_.data() + offsets.back();
      for (uint32_t t = 0; t < block.tokens; ++t) {
        given_.push_back(kernels::RandomFloats(dim, seed + static_cast<uint32_t>(rows_.size())));
        quant::QuantizeToken(shape, given_.back(), t, unit);
        rows_.emplace_back(dim);
        quant::DequantizeToken(shape, unit, t, rows_.back());
        exact_.push_back(Exact(shape, unit, t, rows_.back()));
      }
    }
    memory_ = std::make_unique<DeviceBytes>(bytes_);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      table_.push_back({.units = memory_->at(offsets[i]),
                        .arena_offset = ~uint64_t{0},
                        .page_tokens = blocks_[i].page_tokens,
                        .tokens = blocks_[i].tokens,
                        .format = blocks_[i].format});
    }
  }
  quant::UnitShape ShapeOf(const kernels::BlockShape& block) const {
    return {.format = formats_[block.format],
            .side = quant::Side::kKey,
            .dim = dim_,
            .page_tokens = block.page_tokens};
  }
  uint32_t dim() const { return dim_; }
  const std::vector<std::vector<float>>& given() const { return given_; }  // before quantization
  const std::vector<std::vector<float>>& rows() const { return rows_; }
  const std::vector<std::vector<float>>& exact() const { return exact_; }  // what is attended on
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<prefixd_block>& table() const { return table_; }
  std::vector<prefixd_format> CFormats() const {
    std::vector<prefixd_format> formats;
    for (const auto& format : formats_) formats.push_back({CFormat(format), CFormat(format)});
    return formats;
  }

 private:
  // Attention multiplies codes by scales in floats; MLX rounds to the type of the scales twice.
  static std::vector<float> Exact(const quant::UnitShape& shape, const std::byte* unit, uint32_t t,
                                  const std::vector<float>& rounded) {
    const quant::TensorFormat& format = shape.format;
    if (format.codec != Codec::kMlxAffine) return rounded;
    const quant::RowBytes bytes = quant::BytesOfStoredRow(format, shape.dim);
    std::vector<std::byte> codes(bytes.codes), scales(bytes.scales), biases(bytes.biases);
    quant::LoadRow(shape, unit, t, {codes.data(), scales.data(), biases.data()});
    std::vector<float> scale(shape.dim / format.group_size), bias(scale.size());
    quant::WidenToFloat(format.dtype, scales.data(), scale.size(), scale.data());
    quant::WidenToFloat(format.dtype, biases.data(), bias.size(), bias.data());
    std::vector<float> row(shape.dim);
    for (uint32_t c = 0; c < shape.dim; ++c) {
      uint32_t code = 0;
      for (uint32_t b = 0; b < format.bits; ++b) {
        const uint32_t bit = c * format.bits + b;
        code |= (static_cast<uint32_t>(codes[bit / 8]) >> bit % 8 & 1) << b;
      }
      row[c] =
          static_cast<float>(code) * scale[c / format.group_size] + bias[c / format.group_size];
    }
    return row;
  }
  std::vector<quant::TensorFormat> formats_;
  uint32_t dim_;
  std::vector<kernels::BlockShape> blocks_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceBytes> memory_;
  std::vector<prefixd_block> table_;
  std::vector<std::vector<float>> given_, rows_, exact_;
};

struct Call {
  uint32_t value_dim = 512, query_rows = 1, heads = 16;
  uint32_t window = 0;
  float soft_cap = 0;
};

float ScaleOf(const Latents& keys) { return 1 / std::sqrt(static_cast<float>(keys.dim())); }

// Returns the attention of `q` as sums of doubles.
std::vector<float> Oracle(const Latents& keys, const Call& call, const std::vector<float>& q) {
  const size_t tokens = keys.rows().size(), dim = keys.dim();
  std::vector<float> out;
  for (size_t at = 0; at < size_t{call.query_rows} * call.heads; ++at) {
    const size_t position = tokens - call.query_rows + at / call.heads;
    std::vector<double> weights(position + 1, 0), sums(call.value_dim, 0);
    double all = 0;
    for (size_t t = 0; t <= position; ++t) {
      if (call.window != 0 && position - t >= call.window) continue;
      double dot = 0;
      for (size_t c = 0; c < dim; ++c) dot += double{q[at * dim + c]} * double{keys.exact()[t][c]};
      double score = dot * ScaleOf(keys);
      if (call.soft_cap != 0) score = call.soft_cap * std::tanh(score / call.soft_cap);
      weights[t] = std::exp(score);
      all += weights[t];
    }
    for (size_t t = 0; t <= position; ++t) {
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += weights[t] * double{keys.exact()[t][c]};
    }
    for (const double sum : sums) out.push_back(static_cast<float>(sum / all));
  }
  return out;
}

prefixd_cuda_attention_options OptionsOf(const Latents& keys, const Call& call,
                                         const std::vector<prefixd_format>& formats) {
  prefixd_cuda_attention_options options = PREFIXD_INIT(prefixd_cuda_attention_options);
  options.formats = formats.data();
  options.format_count = static_cast<uint32_t>(formats.size());
  options.query_rows = call.query_rows;
  options.query_heads = call.heads;
  options.kv_heads = 1;
  options.key_dim = keys.dim();
  options.value_dim = call.value_dim;
  options.scale = ScaleOf(keys);
  options.window = call.window;
  options.soft_cap = call.soft_cap;
  options.values = PREFIXD_VALUES_KEY_PREFIX;
  return options;
}

std::vector<float> OnGpu(const std::vector<const Latents*>& sequences, const Call& call,
                         const std::vector<float>& queries) {
  const std::vector<prefixd_format> formats = sequences[0]->CFormats();
  const prefixd_cuda_attention_options options = OptionsOf(*sequences[0], call, formats);
  prefixd_cuda_attention* attention = prefixd_cuda_attention_new(Gpu(), &options);
  EXPECT_NE(attention, nullptr) << prefixd_cuda_last_error();
  if (attention == nullptr) return {};
  std::vector<prefixd_cuda_sequence> list;
  for (const Latents* keys : sequences) {
    const auto last = static_cast<uint32_t>(keys->rows().size()) - call.query_rows;
    list.push_back({keys->table().data(), keys->table().size(), last, 0});
  }
  EXPECT_EQ(prefixd_cuda_attention_set(attention, list.data(), static_cast<uint32_t>(list.size()),
                                       nullptr),
            PREFIXD_OK)
      << prefixd_cuda_last_error();
  const DeviceBytes device_queries(queries);
  const size_t results = list.size() * call.query_rows * call.heads * call.value_dim;
  const DeviceBytes device_results(results * sizeof(float));
  const prefixd_cuda_heads q = {device_queries.data(), PREFIXD_F32, 0, 0, 0, 0};
  const prefixd_cuda_heads out = {device_results.data(), PREFIXD_F32, 0, 0, 0, 0};
  EXPECT_EQ(prefixd_cuda_attend(attention, 0, &q, &out, nullptr, nullptr), PREFIXD_OK)
      << prefixd_cuda_last_error();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<float> got = device_results.Read<float>();
  prefixd_cuda_attention_free(attention);
  return got;
}

double ErrorOf(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double error = 0, all = 1e-60;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    all += std::pow(double{want[i]}, 2);
  }
  return std::isnan(error) ? INFINITY : std::sqrt(error / all);
}

std::vector<quant::TensorFormat> FormatsOf(uint32_t dim) {
  std::vector<quant::TensorFormat> formats = {
      quant::RawFormat(Dtype::kBf16),
      quant::RawFormat(Dtype::kF32),
      quant::MlxAffineFormat(8, 64, Dtype::kF16),
      quant::MlxAffineFormat(4, 32, Dtype::kBf16),
      quant::MlxAffineFormat(3, 64, Dtype::kF16),
      quant::GgmlFormat(Codec::kQ8_0),
      quant::Tiled(quant::MlxAffineFormat(8, 64, Dtype::kF16))};
  std::erase_if(formats, [&](const auto& format) { return !quant::Validate(format, dim).ok(); });
  return formats;
}

TEST(LatentTest, RandomCasesAreLikeTheOracle) {
  SKIP_WITHOUT_GPU();
  double worst = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    Draw draw(seed * 2654435761u + 11);
    const auto [dim, value_dim] = draw.OneOf<std::pair<uint32_t, uint32_t>>(
        {{576, 512}, {576, 512}, {576, 512}, {320, 256}, {192, 128}, {64, 64}, {576, 8}});
    const Call call{.value_dim = value_dim,
                    .query_rows = draw.Once(2) ? 1 : draw.From(1, 9),
                    .heads = draw.OneOf({1u, 5u, 16u, 16u, 128u}),
                    .window = draw.Once(4) ? draw.From(1, 150) : 0,
                    .soft_cap = draw.Once(5) ? 20.f : 0};
    const std::vector<quant::TensorFormat> all = FormatsOf(dim);
    const auto any = [&] { return all[draw.Below(static_cast<uint32_t>(all.size()))]; };
    const std::vector<quant::TensorFormat> formats = {any(), any()};
    std::vector<std::unique_ptr<Latents>> sequences;
    std::vector<const Latents*> list;
    std::vector<float> want, queries;
    for (uint32_t s = 0, count = draw.From(1, 3); s < count; ++s) {
      std::vector<kernels::BlockShape> blocks;
      for (uint32_t left = call.query_rows + draw.Below(400); left > 0;) {
        const uint32_t slots = draw.OneOf({16u, 64u, 64u, 100u});
        const uint32_t used = std::min(left, draw.Once(4) ? draw.From(1, slots + 1) : slots);
        blocks.push_back({.tokens = used, .page_tokens = slots, .format = draw.Below(2)});
        left -= used;
      }
      sequences.push_back(std::make_unique<Latents>(formats, dim, blocks, seed * 100 + s));
      list.push_back(sequences.back().get());
      const auto q = kernels::RandomFloats(size_t{call.query_rows} * call.heads * dim, seed + s);
      const std::vector<float> one = Oracle(*list.back(), call, q);
      queries.insert(queries.end(), q.begin(), q.end());
      want.insert(want.end(), one.begin(), one.end());
    }
    const double error = ErrorOf(OnGpu(list, call, queries), want);
    EXPECT_LE(error, 2e-5) << "seed " << seed << ": " << dim << "/" << value_dim << ", rows "
                           << call.query_rows << ", heads " << call.heads << ", formats "
                           << quant::ToString(formats[0]) << " " << quant::ToString(formats[1]);
    worst = std::max(worst, error);
  }
  std::cout << "largest error " << worst << "\n";
}

TEST(LatentTest, KeysOf576ElementsAreQuantizedToTheCpusBytes) {
  SKIP_WITHOUT_GPU();
  for (const quant::TensorFormat& format : FormatsOf(576)) {
    const Latents keys({format}, 576, {{.tokens = 64, .page_tokens = 64, .format = 0}}, 5);
    std::vector<float> rows;
    for (const auto& row : keys.given()) rows.insert(rows.end(), row.begin(), row.end());
    const DeviceBytes device_rows(rows);
    const DeviceBytes unit(std::vector<std::byte>(keys.bytes().size(), std::byte{0xff}));
    prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
    tensor.data = device_rows.data();
    tensor.dtype = PREFIXD_F32;
    tensor.token_stride = tensor.head_stride = 576;
    void* page = unit.data();
    prefixd_cuda_quantize_options options = PREFIXD_INIT(prefixd_cuda_quantize_options);
    options.rows = &tensor;
    options.format = CFormat(format);
    options.kv_heads = 1;
    options.dim = 576;
    options.count = options.page_tokens = 64;
    options.pages = &page;
    options.page_count = 1;
    ASSERT_EQ(prefixd_cuda_quantize(Gpu(), &options, nullptr), PREFIXD_OK)
        << quant::ToString(format) << ": " << prefixd_cuda_last_error();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(unit.Read<std::byte>(), keys.bytes()) << quant::ToString(format);
  }
}

TEST(LatentTest, PagesOfKeysAloneAreExpandedIntoTheKeysTensor) {
  SKIP_WITHOUT_GPU();
  for (const quant::TensorFormat& format : FormatsOf(576)) {
    const Latents keys({format}, 576,
                       {{.tokens = 64, .page_tokens = 64, .format = 0},
                        {.tokens = 33, .page_tokens = 64, .format = 0}},
                       9);
    const DeviceBytes target(keys.rows().size() * 576 * sizeof(float));
    prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
    tensor.data = target.data();
    tensor.dtype = PREFIXD_F32;
    tensor.token_stride = tensor.head_stride = 576;
    const std::vector<prefixd_format> formats = keys.CFormats();
    prefixd_cuda_load_layer layer = PREFIXD_INIT(prefixd_cuda_load_layer);
    layer.blocks = keys.table().data();
    layer.block_count = keys.table().size();
    layer.formats = formats.data();
    layer.format_count = 1;
    layer.kv_heads = 1;
    layer.key_dim = 576;
    layer.key = &tensor;
    layer.values = PREFIXD_VALUES_KEY_PREFIX;
    prefixd_cuda_load_options load = PREFIXD_INIT(prefixd_cuda_load_options);
    load.layers = &layer;
    load.layer_count = 1;
    prefixd_cuda_load* const begun = prefixd_cuda_load_begin(Gpu(), &load);
    ASSERT_NE(begun, nullptr) << prefixd_cuda_last_error();
    ASSERT_EQ(prefixd_cuda_load_end(begun, nullptr), PREFIXD_OK);
    std::vector<float> want;
    for (const auto& row : keys.rows()) want.insert(want.end(), row.begin(), row.end());
    EXPECT_EQ(target.Read<float>(), want) << quant::ToString(format);
    layer.value = &tensor;
    EXPECT_EQ(prefixd_cuda_load_begin(Gpu(), &load), nullptr);
    EXPECT_NE(std::string(prefixd_cuda_last_error()).find("keys alone"), std::string::npos);
  }
}

}  // namespace
}  // namespace prefixd::cuda
