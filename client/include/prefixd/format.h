// prefixd/format.h: in which format K and V of a layer are stored, and how many bytes that takes.
// Part of prefixd/client.h, which includes it. Plain values; the functions are thread-safe.
#pragma once
#include <cstdint>

namespace prefixd {

enum class Dtype : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };
enum class Codec : uint8_t {
  kRaw = 1,
  kMlxAffine = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kMxFp4 = 8,  // MLX's block floating point: codes and a scale byte for each group
  kMxFp8 = 9,
  kNvFp4 = 10  // without a global scale
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

struct TensorFormat {
  Codec codec = Codec::kRaw;
  Dtype dtype = Dtype::kF32;  // of raw elements, or of MLX scales and biases
  uint8_t bits = 32;
  uint16_t group_size = 0;
  Rotation rotation = Rotation::kNone;
  Layout layout = Layout::kRows;
};
struct KvFormat {
  TensorFormat key{}, value{};
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
};
RowBytes BytesOfRow(const TensorFormat& format, uint32_t dim);

}  // namespace prefixd
