// What the bytes of a cached tensor mean: codec, widths, groups, dtypes, layout; and how many bytes
// that is.
//
// Pure values and functions, thread-safe. Quantization groups run along the last dimension (key_dim
// or value_dim) inside one token and one head, so cutting at any token is exact. The codecs are
// those of MLX ("affine", "mxfp4", "mxfp8", "nvfp4") and ggml; src/README.md names the sources.
#pragma once
#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prefixd::quant {

// Values are persistent: they stand in space identities, on disk and on the wire. 0 is never valid.
enum class Dtype : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };
enum class Codec : uint8_t {
  kRaw = 1,        // elements of `dtype`, as they are
  kMlxAffine = 2,  // MLX mode "affine": codes, scales, biases
  kQ4_0 = 3,       // ggml blocks of 32 elements, scale inside the block
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kMxFp4 = 8,   // MLX's block floats (quant/block_float.cc): groups of 32, codes e2m1, scales e8m0
  kMxFp8 = 9,   // groups of 32, codes e4m3, scales e8m0; a block float's scale is a byte
  kNvFp4 = 10,  // groups of 16, codes e2m1, scales e4m3; no global scale, it would have no field
};
// kHadamard: the engine rotates every row by kernels/hadamard.h before it is quantized, and rotates
// its queries and the output of attention accordingly. Stored bytes mean the rotated row: codecs
// and kernels take them as they are.
enum class Rotation : uint8_t { kNone = 1, kHadamard = 2 };
// The order of codes in a unit; the codes are the same in each layout. kRows: codes [tokens][row],
// then scales [tokens][dim/group], then biases, in MLX's and ggml's own row order. kTiled: 32-bit
// words as attention kernels multiply them, for codes of 8 and 4 bits (quant/tiled.h). kTransposed:
// raw elements [dim][tokens], as engines without flash attention keep V; it has page_tokens slots.
enum class Layout : uint8_t { kRows = 1, kTiled = 2, kTransposed = 3 };
// K or V, which layout tiled orders differently.
enum class Side : uint8_t { kKey = 1, kValue = 2 };

// The format of K or of V. Fields that a codec does not use hold the value that RawFormat,
// MlxAffineFormat, GgmlFormat and BlockFloatFormat give them. Validate refuses any other value, so
// that equal formats are equal bytes.
struct TensorFormat {
  Codec codec = Codec::kRaw;
  Dtype dtype = Dtype::kF32;  // raw: of the elements; MLX: of the data, scales and biases; ggml:
                              // kF16; block float: kBf16, which holds every normal value
  uint8_t bits = 32;          // per element: raw 16 or 32; MLX 2, 3, 4, 5, 6, 8; ggml 4, 5, 8
  uint16_t group_size = 0;    // elements per scale: raw 0; MLX 32, 64, 128; ggml 32; block float
                              // 32, nvfp4 16
  Dtype scale_dtype = Dtype::kF32;  // raw: = dtype; MLX: = dtype; ggml: kF16; block float: kBf16,
                                    // unused, since a scale is a byte
  Rotation rotation = Rotation::kNone;
  Layout layout = Layout::kRows;
  auto operator<=>(const TensorFormat&) const = default;
};

struct KvFormat {
  TensorFormat key, value;
  auto operator<=>(const KvFormat&) const = default;
};

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

// The bytes of one token of one head. ggml in layout rows has everything in `codes`, since its
// blocks include their scales. Tiled, `scales` and `biases` hold its d and m; the sum is the same.
struct RowBytes {
  uint32_t codes = 0;
  uint32_t scales = 0;
  uint32_t biases = 0;
  uint32_t total() const { return codes + scales + biases; }
};
RowBytes BytesOfRow(const TensorFormat& format,
                    uint32_t dim);  // Requires: Validate(format, dim) is OK.

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
  uint64_t payload_bytes = 0;  // slots * BytesOfRow().total()
  uint64_t unit_bytes = 0;     // payload rounded up to kUnitAlignment
};
UnitLayout LayoutOfUnit(const TensorFormat& format, uint32_t dim, uint32_t page_tokens);

}  // namespace prefixd::quant
