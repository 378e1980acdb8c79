#include "kernels/decode/formats.h"

namespace prefixd::kernels {
namespace {

constexpr uint32_t kLanes = 16;

bool HasFastWay(const quant::TensorFormat& format, uint32_t dim) {
  if (format.codec == quant::Codec::kRaw) {
    return dim % kLanes == 0 && format.layout == quant::Layout::kRows;
  }
  return quant::HasTiled(format);
}

DecodeTensor TensorOf(const quant::TensorFormat& format, quant::Side side, uint32_t dim) {
  DecodeTensor tensor;
  tensor.format = &format;
  tensor.dim = dim;
  tensor.raw = format.codec == quant::Codec::kRaw;
  if (tensor.raw) return tensor;
  tensor.group = format.group_size;
  tensor.groups = dim / format.group_size;
  tensor.bits = format.bits;
  tensor.is_signed = format.codec == quant::Codec::kQ8_0;
  tensor.biased = format.codec == quant::Codec::kMlxAffine || format.codec == quant::Codec::kQ4_1;
  tensor.middle = format.bits == 8 ? 128.0f : 8.0f;
  tensor.in_rows = format.layout == quant::Layout::kRows;
  tensor.tile = {
      .format = quant::Tiled(format), .side = side, .dim = dim, .page_tokens = kDecodeTile};
  tensor.tile_layout = quant::LayoutOf(tensor.tile);
  return tensor;
}

}  // namespace

bool HasFastDecode(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim) {
  return HasFastWay(format.key, key_dim) && HasFastWay(format.value, value_dim);
}

DecodeFormat DecodeFormatOf(const quant::KvFormat& format, uint32_t key_dim, uint32_t value_dim) {
  DecodeFormat decode{.key = TensorOf(format.key, quant::Side::kKey, key_dim),
                      .value = TensorOf(format.value, quant::Side::kValue, value_dim)};
  // 8 bits of q and of the weights cost about 1.5 % of a result: less than 4-bit values do, more
  // than 8-bit keys and values.
  decode.digits = format.key.bits >= 8 && format.value.bits >= 8 ? 2 : 1;
  return decode;
}

}  // namespace prefixd::kernels
