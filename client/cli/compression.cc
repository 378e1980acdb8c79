#include "client/cli/compression.h"

#include "block/layer_group.h"
#include "wire/identity.h"

namespace prefixd::cli {
namespace {

uint64_t RawBytes(const quant::TensorFormat& format, uint64_t elements) {
  const bool said = format.codec == quant::Codec::kRaw || format.codec == quant::Codec::kMlxAffine;
  return elements * (said ? quant::DtypeBytes(format.dtype) : 2);
}

// Returns the raw bytes of one token in one layer.
uint64_t RawBytes(const block::LayerGroup& group, const quant::KvFormat& format) {
  const uint64_t heads = group.kv_heads;
  uint64_t bytes = RawBytes(format.key, heads * group.key_dim);
  if (block::StoresValues(group)) {
    bytes += RawBytes(format.value, heads * group.value_dim);
  }
  return bytes;
}

}  // namespace

std::vector<FormatRatio> Compression(const v1::SpaceIdentity& proto) {
  std::vector<FormatRatio> ratios;
  const absl::StatusOr<block::SpaceIdentity> identity = wire::FromProto(proto);
  if (!identity.ok()) return ratios;
  for (uint32_t rung = 0; rung < block::kMaxLadder; ++rung) {
    uint64_t raw = 0, stored = 0;
    std::string name;
    for (const block::LayerGroup& group : identity->groups) {
      if (rung >= group.ladder.size() || !block::Validate(group).ok()) continue;
      if (name.empty()) name = quant::ToString(group.ladder[rung]);
      raw += group.layers.size() * RawBytes(group, group.ladder[rung]);
      stored += group.layers.size() * block::TokenBytesPerLayer(group, rung);
    }
    if (stored == 0) break;
    ratios.push_back({name, static_cast<double>(raw) / static_cast<double>(stored)});
  }
  return ratios;
}

}  // namespace prefixd::cli
