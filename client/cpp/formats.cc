// The format functions of client.h.
#include "prefixd/client.h"
#include "quant/format.h"

namespace prefixd {
namespace {

TensorFormat MlxTensor(int bits, int group_size, Dtype dtype) {
  // A value out of range becomes 0, which OpenSpace refuses by name.
  return quant::MlxAffineFormat(
      static_cast<uint8_t>(bits < 0 || bits > 255 ? 0 : bits),
      static_cast<uint16_t>(group_size < 0 || group_size > 65535 ? 0 : group_size), dtype);
}

TensorFormat GgmlTensor(Codec codec) {
  const bool ggml = codec >= Codec::kQ4_0 && codec <= Codec::kQ8_0;
  if (!ggml) return {.codec = codec, .dtype = Dtype::kF16, .bits = 0, .group_size = 0};
  return quant::GgmlFormat(codec);
}

TensorFormat BlockFloatTensor(Codec codec) {
  if (!quant::IsBlockFloat(codec)) {
    return {.codec = codec, .dtype = Dtype::kBf16, .bits = 0, .group_size = 0};
  }
  return quant::BlockFloatFormat(codec);
}

}  // namespace

KvFormat Raw(Dtype dtype) {
  const TensorFormat tensor = quant::RawFormat(dtype);
  return {.key = tensor, .value = tensor};
}

KvFormat MlxAffine(int bits, int group_size, Dtype dtype) {
  return MlxAffine(bits, group_size, bits, group_size, dtype);
}

KvFormat MlxAffine(int key_bits, int key_group, int value_bits, int value_group, Dtype dtype) {
  return {.key = MlxTensor(key_bits, key_group, dtype),
          .value = MlxTensor(value_bits, value_group, dtype)};
}

KvFormat Ggml(Codec key, Codec value) {
  return {.key = GgmlTensor(key), .value = GgmlTensor(value)};
}

KvFormat BlockFloat(Codec key, Codec value) {
  return {.key = BlockFloatTensor(key), .value = BlockFloatTensor(value)};
}

KvFormat Rotated(KvFormat format) {
  return {.key = quant::Rotated(format.key), .value = quant::Rotated(format.value)};
}

KvFormat Tiled(KvFormat format) {
  return {.key = quant::Tiled(format.key), .value = quant::Tiled(format.value)};
}

RowBytes BytesOfRow(const TensorFormat& format, uint32_t dim) {
  if (!quant::Validate(format, dim).ok()) return {};
  return quant::BytesOfStoredRow(quant::InRows(format), dim);
}

const char* ToString(MatchKind kind) {
  switch (kind) {
    case MatchKind::kExact:
      return "EXACT";
    case MatchKind::kSupersequence:
      return "SUPERSEQUENCE";
    case MatchKind::kPrefix:
      return "PREFIX";
    case MatchKind::kLcp:
      return "LCP";
    case MatchKind::kNone:
      return "NONE";
  }
  return "NONE";
}

}  // namespace prefixd
