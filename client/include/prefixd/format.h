// prefixd/format.h: what a layer keeps, in which format K and V are stored, and how many bytes that
// takes. Part of prefixd/client.h, which includes it. Plain values; the functions are thread-safe.
#pragma once
#include <compare>
#include <cstdint>

namespace prefixd {

// The values of these enums are persistent: they stand in space identities, on disk and on the
// wire. 0 is never valid.

// What a layer keeps of earlier tokens. kFull: K and V of all of them. kSliding: K and V of the
// last `window` tokens and of the first `sink_tokens`. kState: one state of state_bytes, which is
// right at exactly one position.
enum class LayerKind : uint8_t { kFull = 1, kSliding = 2, kState = 3 };

// What a layer keeps beside its keys. kStored: its values. kNone: nothing. kKeyPrefix: nothing; its
// values are the first value_dim elements of its keys (MLA's latent), stored once. In formats of
// kNone and kKeyPrefix the value repeats the key's format; Append, WritePacked and Gather ignore
// the values they are given.
enum class ValueSource : uint8_t { kStored = 1, kNone = 2, kKeyPrefix = 3 };

enum class Dtype : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };
enum class Codec : uint8_t {
  kRaw = 1,        // elements of `dtype`, as they are
  kMlxAffine = 2,  // MLX mode "affine": codes, scales, biases
  kQ4_0 = 3,       // ggml blocks of 32 elements, scale inside the block
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kMxFp4 = 8,   // MLX's block floating point: groups of 32, codes e2m1, a scale byte e8m0 for each
  kMxFp8 = 9,   // groups of 32, codes e4m3, scales e8m0
  kNvFp4 = 10,  // groups of 16, codes e2m1, scales e4m3; without a global scale
};
// kHadamard: the engine passes K and V that it rotated with Rotate() of prefixd/attention.h,
// rotates its queries the same way and rotates the output of attention back. The library stores and
// attends on what it is given; the label makes the space a different one.
enum class Rotation : uint8_t { kNone = 1, kHadamard = 2 };
// The order of the same codes in a page. kRows: the order of MLX and ggml, for engines that read
// pages as such tensors. kTiled: the order that Attend() reads fastest, for integer codes of 8 and
// 4 bits. kTransposed: raw elements [dim][tokens] in the page, for engines that read V so. Append,
// WritePacked and Gather take and give the same bytes with every layout.
enum class Layout : uint8_t { kRows = 1, kTiled = 2, kTransposed = 3 };

// The format of K or of V. Fields that a codec does not use hold the value that Raw, MlxAffine,
// Ggml and BlockFloat give them. OpenSpace refuses any other value, so that equal formats are equal
// bytes.
struct TensorFormat {
  Codec codec = Codec::kRaw;
  Dtype dtype = Dtype::kF32;  // raw: of the elements; MLX: of the data, scales and biases; ggml:
                              // kF16; block float: kBf16, which holds every normal value
  uint8_t bits = 32;          // per element: raw 16 or 32; MLX 2, 3, 4, 5, 6, 8; ggml 4, 5, 8
  uint16_t group_size = 0;    // elements per scale: raw 0; MLX 32, 64, 128; ggml 32; block float
                              // 32, nvfp4 16
  Rotation rotation = Rotation::kNone;
  Layout layout = Layout::kRows;
  auto operator<=>(const TensorFormat&) const = default;
};
struct KvFormat {
  TensorFormat key{}, value{};
  auto operator<=>(const KvFormat&) const = default;
};
KvFormat Raw(Dtype dtype);
KvFormat MlxAffine(int bits, int group_size, Dtype dtype);
KvFormat MlxAffine(int key_bits, int key_group, int value_bits, int value_group, Dtype dtype);
KvFormat Ggml(Codec key, Codec value);        // kQ4_0 to kQ8_0
KvFormat BlockFloat(Codec key, Codec value);  // kMxFp4, kMxFp8 or kNvFp4
KvFormat Rotated(KvFormat format);            // K and V with Rotation::kHadamard
// Gives K and V Layout::kTiled if their codec has it: MLX's 8 and 4 bits, q8_0, q4_0, q4_1. Others
// stay as they are.
KvFormat Tiled(KvFormat format);
// OpenSpace refuses a format whose parts do not fit together, and names the part.

// Bytes of one token's packed row of one head, whatever the page's layout: codes, then scales and
// biases (0 for raw; ggml keeps scales inside its codes). All 0 when the format is impossible for
// rows of `dim`.
struct RowBytes {
  uint32_t codes = 0, scales = 0, biases = 0;
  uint32_t total() const { return codes + scales + biases; }
};
RowBytes BytesOfRow(const TensorFormat& format, uint32_t dim);

}  // namespace prefixd
