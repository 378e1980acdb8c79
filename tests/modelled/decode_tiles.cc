// One fast decode of TOKENS tokens by 4 query heads of one kv head of 128 channels, each block one
// tile: what modelled.py counts. Arguments: FORMAT TOKENS [precise]; prints the bytes of a tile.
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "kernels/attention.h"
#include "quant/format.h"

namespace prefixd {
namespace {

constexpr uint32_t kDim = 128, kHeads = 4, kTile = 64;

KvFormat FormatOf(std::string_view name) {
  const auto affine = [](uint8_t bits) {
    return quant::Tiled(quant::MlxAffineFormat(bits, 64, Dtype::kF16));
  };
  if (name == "8/8") return {.key = affine(8), .value = affine(8)};
  if (name == "8/4") return {.key = affine(8), .value = affine(4)};
  if (name == "4/4") return {.key = affine(4), .value = affine(4)};
  if (name == "q8_0")
    return {.key = quant::Tiled(quant::GgmlFormat(Codec::kQ8_0)),
            .value = quant::Tiled(quant::GgmlFormat(Codec::kQ8_0))};
  if (name == "q4_0")
    return {.key = quant::Tiled(quant::GgmlFormat(Codec::kQ4_0)),
            .value = quant::Tiled(quant::GgmlFormat(Codec::kQ4_0))};
  return {.key = quant::RawFormat(Dtype::kF16), .value = quant::RawFormat(Dtype::kF16)};
}

int Run(int argc, char** argv) {
  if (argc < 3) return 2;
  const KvFormat format = FormatOf(argv[1]);
  const auto tokens = static_cast<uint32_t>(std::atoi(argv[2]));
  const uint64_t bytes = quant::LayoutOfUnit(format.key, kDim, kTile).unit_bytes +
                         quant::LayoutOfUnit(format.value, kDim, kTile).unit_bytes;
  const std::vector<std::byte> unit(bytes, std::byte{0x1c});
  const BlockTableEntry block{.units = unit.data(), .page_tokens = kTile, .tokens = kTile};
  const std::vector<BlockTableEntry> table(tokens / kTile, block);
  kernels::AttentionShape shape;
  shape.query_heads = kHeads;
  shape.kv_heads = 1;
  shape.key_dim = shape.value_dim = kDim;
  shape.first_position = tokens - 1;
  shape.scale = 0.08f;
  shape.mode = argc > 3 ? kernels::AttentionMode::kPrecise : kernels::AttentionMode::kFast;
  const std::vector<float> q(kHeads * kDim, 0.1f);
  std::vector<float> out(kHeads * kDim);
  const absl::Status attended = kernels::Attend(table, {&format, 1}, q.data(), out.data(), shape);
  std::printf("%llu\n", static_cast<unsigned long long>(bytes));
  return attended.ok() ? 0 : 1;
}

}  // namespace
}  // namespace prefixd

int main(int argc, char** argv) { return prefixd::Run(argc, argv); }
