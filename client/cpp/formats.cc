// The format functions of client.h.
#include "convert.h"
#include "prefixd/client.h"
#include "quant/format.h"

namespace prefixd {
namespace {

TensorFormat MlxTensor(int bits, int group_size, Dtype dtype) {
  return {
      .codec = Codec::kMlxAffine,
      .dtype = dtype,
      // A value out of range becomes 0, which OpenSpace refuses by name.
      .bits = static_cast<uint8_t>(bits < 0 || bits > 255 ? 0 : bits),
      .group_size = static_cast<uint16_t>(group_size < 0 || group_size > 65535 ? 0 : group_size)};
}

TensorFormat GgmlTensor(Codec codec) {
  const bool ggml = codec >= Codec::kQ4_0 && codec <= Codec::kQ8_0;
  if (!ggml) return {.codec = codec, .dtype = Dtype::kF16, .bits = 0, .group_size = 0};
  return client::ToPublic(quant::GgmlFormat(static_cast<quant::Codec>(codec)));
}

TensorFormat BlockFloatTensor(Codec codec) {
  if (!quant::IsBlockFloat(static_cast<quant::Codec>(codec))) {
    return {.codec = codec, .dtype = Dtype::kBf16, .bits = 0, .group_size = 0};
  }
  return client::ToPublic(quant::BlockFloatFormat(static_cast<quant::Codec>(codec)));
}

}  // namespace

KvFormat Raw(Dtype dtype) {
  const TensorFormat tensor{.codec = Codec::kRaw,
                            .dtype = dtype,
                            .bits = static_cast<uint8_t>(dtype == Dtype::kF32 ? 32 : 16),
                            .group_size = 0};
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
  format.key.rotation = format.value.rotation = Rotation::kHadamard;
  return format;
}

KvFormat Tiled(KvFormat format) {
  for (TensorFormat* tensor : {&format.key, &format.value}) {
    if (quant::HasTiled(client::FromPublic(*tensor))) tensor->layout = Layout::kTiled;
  }
  return format;
}

RowBytes BytesOfRow(const TensorFormat& format, uint32_t dim) {
  const quant::TensorFormat checked = client::FromPublic(format);
  if (!quant::Validate(checked, dim).ok()) return {};
  const quant::RowBytes row = quant::BytesOfRow(quant::InRows(checked), dim);
  return {.codes = row.codes, .scales = row.scales, .biases = row.biases};
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
