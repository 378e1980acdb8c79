// What the bytes of a cached tensor mean: codec, widths, groups, dtypes, layout; and how many bytes
// that is.
//
// Pure values and functions, thread-safe. Quantization groups run along the last dimension (key_dim
// or value_dim) inside one token and one head, so cutting at any token is exact. The codecs are
// those of MLX ("affine", "mxfp4", "mxfp8", "nvfp4") and ggml; src/README.md names the sources.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "prefixd/format.h"

namespace prefixd::quant {

// The public header defines the values. Here is what they mean beside that.
//
// Rotation::kHadamard: the engine rotates every row by kernels/hadamard.h before it is quantized.
// Stored bytes mean the rotated row: codecs and kernels take them as they are.
//
// Layout is the order of codes in a unit. kRows: codes [tokens][row], then scales
// [tokens][dim/group], then biases, in MLX's and ggml's own row order. kTiled: 32-bit words as
// attention kernels multiply them, for codes of 8 and 4 bits (quant/tiled.h). kTransposed: raw
// elements [dim][tokens], as engines without flash attention keep V; it has page_tokens slots.
//
// Scales and biases have the format's dtype, but for block floats, whose scale is a byte
// (quant/block_float.cc).
using prefixd::Codec;
using prefixd::Dtype;
using prefixd::KvFormat;
using prefixd::Layout;
using prefixd::Rotation;
using prefixd::RowBytes;
using prefixd::TensorFormat;
// K or V, which layout tiled orders differently.
enum class Side : uint8_t { kKey = 1, kValue = 2 };

TensorFormat RawFormat(Dtype dtype);
TensorFormat MlxAffineFormat(uint8_t bits, uint16_t group_size, Dtype dtype);
TensorFormat GgmlFormat(Codec codec);        // Requires: one of kQ4_0 ... kQ8_0.
TensorFormat BlockFloatFormat(Codec codec);  // Requires: one of kMxFp4, kMxFp8, kNvFp4.
TensorFormat Rotated(TensorFormat format);   // sets Rotation::kHadamard

// Returns how many elements one Hadamard transform mixes in rows of `dim`: the largest power of two
// that divides `dim`. Formats with a rotation require at least kMinHadamardBlock: with less, the
// rotation would be a label without effect.
uint32_t HadamardBlock(uint32_t dim);
inline constexpr uint32_t kMinHadamardBlock = 16;

bool IsBlockFloat(Codec codec);
// Returns true for integer codes of 8 or 4 bits with scales: MLX's affine, q8_0, q4_0, q4_1.
bool HasTiled(const TensorFormat& format);
// Return the format with the same codes in the other layout. Tiled returns a format that has no
// tiled layout unchanged.
TensorFormat Tiled(TensorFormat format);
TensorFormat InRows(TensorFormat format);
// Elements [dim][tokens]. Requires: codec kRaw.
TensorFormat Transposed(TensorFormat format);

inline constexpr uint32_t kMaxDim = 65536;  // keeps every size below in 32 (row) and 64 bits (unit)

// Returns InvalidArgument if `format` is not one of the above or does not fit rows of `dim`
// elements (1 to kMaxDim). The message names what was seen and what is accepted: "format:
// group_size 64 of mlx_affine/8/64/f16 does not divide head_dim 96, accepted here: 32".
absl::Status Validate(const TensorFormat& format, uint32_t dim);

// Returns "raw/f16", "mlx_affine/8/64/bf16", "nvfp4", "raw/f16/transposed", "q8_0/tiled",
// "q8_0/hadamard", "q8_0/tiled/hadamard". ParseTensorFormat reads exactly these strings and returns
// InvalidArgument for any other. The parsed format passes Validate for some dim.
std::string ToString(const TensorFormat& format);
absl::StatusOr<TensorFormat> ParseTensorFormat(const std::string& text);
// Returns "mlx_affine/8/64/f16" if K and V agree, else "mlx_affine/8/64/f16+mlx_affine/4/64/f16".
std::string ToString(const KvFormat& format);
const char* ToString(Dtype dtype);
uint32_t DtypeBytes(Dtype dtype);

// Returns the bytes of one token of one head as a page keeps them. ggml in layout rows has
// everything in `codes`, since its blocks include their scales. Tiled, `scales` and `biases` hold
// its d and m; the sum is the same. Requires: Validate(format, dim) is OK.
RowBytes BytesOfStoredRow(const TensorFormat& format, uint32_t dim);

// A unit: one layer, one of K or V, one kv head, `page_tokens` tokens in as many slots. Layout
// tiled rounds the slots up to kTiledSlots. Every unit starts on a 128-byte boundary and its length
// is a multiple of 128. Padding is zero, and so are tiled slots beyond page_tokens.
inline constexpr uint32_t kUnitAlignment = 128;
inline constexpr uint32_t kTiledSlots = 16;
struct UnitLayout {
  uint64_t slots = 0;
  uint64_t codes_offset = 0;   // where slots * RowBytes::codes bytes begin
  uint64_t scales_offset = 0;  // where slots * RowBytes::scales bytes begin
  uint64_t biases_offset = 0;  // where slots * RowBytes::biases bytes begin
  uint64_t payload_bytes = 0;  // slots * BytesOfStoredRow().total()
  uint64_t unit_bytes = 0;     // payload rounded up to kUnitAlignment
};
UnitLayout LayoutOfUnit(const TensorFormat& format, uint32_t dim, uint32_t page_tokens);

}  // namespace prefixd::quant
