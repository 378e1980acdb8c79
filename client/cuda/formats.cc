#include "formats.h"

#include <cmath>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"

namespace prefixd::cuda {
namespace {

static_assert(static_cast<int>(quant::Codec::kRaw) == kRaw);
static_assert(static_cast<int>(quant::Codec::kQ8_0) == kQ8_0);
static_assert(static_cast<int>(quant::Codec::kQ4_0) == kQ4_0);
static_assert(static_cast<int>(quant::Dtype::kF32) == kF32);
static_assert(static_cast<int>(quant::Dtype::kBf16) == kBf16);
static_assert(static_cast<int>(quant::Layout::kTransposed) == kTransposed);
static_assert(quant::kUnitAlignment == kUnitAlignment);

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("cuda: ", parts...));
}

}  // namespace

quant::TensorFormat FormatOf(const prefixd_tensor_format& format) {
  const auto codec = static_cast<quant::Codec>(format.codec);
  quant::TensorFormat to;
  if (codec == quant::Codec::kRaw) {
    to = quant::RawFormat(static_cast<quant::Dtype>(format.dtype));
  } else if (codec == quant::Codec::kMlxAffine) {
    to = quant::MlxAffineFormat(format.bits, format.group_size,
                                static_cast<quant::Dtype>(format.dtype));
  } else if (codec > quant::Codec::kMlxAffine && codec <= quant::Codec::kQ8_0) {
    to = quant::GgmlFormat(codec);
  } else {
    to.codec = codec;
  }
  // The codec implies these. If they are given all the same, they must be right.
  if (format.bits != 0) to.bits = format.bits;
  if (format.group_size != 0) to.group_size = format.group_size;
  if (format.dtype != 0) to.dtype = static_cast<quant::Dtype>(format.dtype);
  if (format.layout != 0) to.layout = static_cast<quant::Layout>(format.layout);
  return to;
}

absl::Status CheckDim(uint32_t dim, Side side) {
  const bool usual = dim != 0 && dim % kOctet == 0 && dim <= kMaxDim;
  if (usual) return absl::OkStatus();
  if (side != Side::kLatent) {
    return Refuse("head_dim is ", dim, ", must be a multiple of 8, at most ", kMaxDim);
  }
  if (dim > kMaxDim && dim % kLatentStep == 0 && dim <= kMaxLatentDim) return absl::OkStatus();
  return Refuse("keys have ", dim, " elements, must be a multiple of 8 up to ", kMaxDim, ", or of ",
                kLatentStep, " up to ", kMaxLatentDim);
}

absl::StatusOr<bool> IsLatent(uint32_t values) {
  if (values > PREFIXD_VALUES_STORED && values != PREFIXD_VALUES_KEY_PREFIX) {
    return Refuse("values is ", values, ", must be PREFIXD_VALUES_STORED or _KEY_PREFIX");
  }
  return values == PREFIXD_VALUES_KEY_PREFIX;
}

absl::StatusOr<TensorGeometry> GeometryOf(const prefixd_tensor_format& given, uint32_t dim,
                                          Side side) {
  const quant::TensorFormat format = FormatOf(given);
  if (quant::IsBlockFloat(format.codec)) {
    return Refuse("block floats (mxfp4, mxfp8, nvfp4) are not read on the GPU");
  }
  PREFIXD_RETURN_IF_ERROR(CheckDim(dim, side));
  const absl::Status valid = quant::Validate(format, dim);
  if (!valid.ok()) return Refuse(valid.message());
  const quant::RowBytes row = quant::BytesOfStoredRow(format, dim);
  return TensorGeometry{.codec = static_cast<uint8_t>(format.codec),
                        .bits = format.bits,
                        .dtype = static_cast<uint8_t>(format.dtype),
                        .layout = static_cast<uint8_t>(format.layout),
                        .value = static_cast<uint8_t>(side == Side::kValue ? 1 : 0),
                        .group = format.group_size,
                        .dim = dim,
                        .row_codes = row.codes,
                        .row_scales = row.scales,
                        .row_biases = row.biases};
}

absl::StatusOr<std::vector<PairGeometry>> GeometryOf(const prefixd_format* formats, size_t count,
                                                     const LayerDims& dims) {
  if (formats == nullptr || count == 0) return Refuse("no formats given");
  if (count > kMostFormats) {
    return Refuse(count, " formats given, at most ", kMostFormats, " are accepted");
  }
  if (dims.kv_heads == 0 || dims.kv_heads > 1024) {
    return Refuse("kv_heads is ", dims.kv_heads, ", must be 1 to 1024");
  }
  std::vector<PairGeometry> pairs(count);
  for (size_t i = 0; i < count; ++i) {
    const Side key = dims.latent ? Side::kLatent : Side::kKey;
    PREFIXD_ASSIGN_OR_RETURN(pairs[i].key, GeometryOf(formats[i].key, dims.key_dim, key));
    if (dims.latent) continue;
    PREFIXD_ASSIGN_OR_RETURN(pairs[i].value,
                             GeometryOf(formats[i].value, dims.value_dim, Side::kValue));
  }
  return pairs;
}

absl::StatusOr<TensorPlace> PlaceOf(const prefixd_cuda_tensor* tensor, uint32_t kv_heads,
                                    uint32_t dim, const char* what) {
  if (tensor == nullptr || tensor->data == nullptr) return Refuse(what, ": no tensor given");
  if (!CheckSize(tensor, tensor->size, sizeof(*tensor))) return Refuse(what, ": wrong size");
  prefixd_cuda_tensor given;
  Take(tensor, &given);
  if ((given.dtype < kF32 || given.dtype > kBf16) && given.dtype != kF8) {
    return Refuse(what, ": dtype is ", given.dtype, ", must be f32, f16, bf16 or PREFIXD_CUDA_F8");
  }
  if (!std::isfinite(given.scale) || given.scale < 0) {
    return Refuse(what, ": scale is ", given.scale, ", must be positive, or 0 for 1");
  }
  if (given.split != 0 && dim % given.split != 0) {
    return Refuse(what, ": split ", given.split, " does not divide head_dim ", dim);
  }
  if (reinterpret_cast<uintptr_t>(given.data) % ElementBytes(given.dtype) != 0) {
    return Refuse(what, ": data is not aligned to its elements");
  }
  if (given.token_stride == 0) return Refuse(what, ": token_stride is 0");
  if (given.head_stride == 0 && kv_heads > 1) return Refuse(what, ": head_stride is 0");
  if (given.block_tokens != 0 && given.block_stride == 0) {
    return Refuse(what, ": block_stride is 0");
  }
  return TensorPlace{.data = given.data,
                     .dtype = given.dtype,
                     .block_tokens = given.block_tokens,
                     .block_stride = given.block_stride,
                     .token_stride = given.token_stride,
                     .head_stride = given.head_stride,
                     .split_stride = given.split_stride,
                     .split = given.split == 0 ? dim : given.split,
                     .scale = given.scale == 0 ? 1 : given.scale};
}

absl::Status CheckTable(const TensorPlace& place, const int32_t* table, uint32_t count,
                        uint64_t end) {
  if (place.block_tokens == 0) return absl::OkStatus();
  const uint64_t wanted = (end + place.block_tokens - 1) / place.block_tokens;
  if (table == nullptr || count < wanted) {
    return Refuse("the table has ", table == nullptr ? 0 : count, " blocks of ", place.block_tokens,
                  " tokens, ", wanted, " are needed for ", end, " tokens");
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cuda
