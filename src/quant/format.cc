#include "quant/format.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/bytes.h"
#include "base/status.h"
#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

constexpr std::array<uint32_t, 6> kMlxBits = {2, 3, 4, 5, 6, 8};
constexpr std::array<uint32_t, 3> kMlxGroups = {32, 64, 128};
constexpr std::array<Dtype, 3> kDtypes = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};
constexpr std::array<Codec, 5> kGgmlCodecs = {Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0,
                                              Codec::kQ5_1, Codec::kQ8_0};
constexpr std::array<Codec, 3> kBlockFloatCodecs = {Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4};
constexpr const char* kCodecNames =
    "raw, mlx_affine, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4, mxfp8, nvfp4";
constexpr const char* kFormatNames =
    "raw/DTYPE, mlx_affine/BITS/GROUP/DTYPE, q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4, mxfp8, nvfp4, "
    "with /tiled or /transposed behind what has that layout, each also with /hadamard";
constexpr const char* kTiledSuffix = "/tiled";
constexpr const char* kTransposedSuffix = "/transposed";
constexpr const char* kHadamardSuffix = "/hadamard";

template <typename List, typename T>
bool Contains(const List& list, T value) {
  for (const auto& each : list) {
    if (each == value) return true;
  }
  return false;
}

const char* NameOf(Codec codec) {
  switch (codec) {
    case Codec::kRaw:
      return "raw";
    case Codec::kMlxAffine:
      return "mlx_affine";
    case Codec::kQ4_0:
      return "q4_0";
    case Codec::kQ4_1:
      return "q4_1";
    case Codec::kQ5_0:
      return "q5_0";
    case Codec::kQ5_1:
      return "q5_1";
    case Codec::kQ8_0:
      return "q8_0";
    case Codec::kMxFp4:
      return "mxfp4";
    case Codec::kMxFp8:
      return "mxfp8";
    case Codec::kNvFp4:
      return "nvfp4";
  }
  return "unknown";
}

template <typename T>
absl::Status Refuse(const char* field, T seen, const std::string& accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat("format: ", field, " ", seen, ", accepted: ", accepted));
}

template <typename Enum>
uint32_t Number(Enum value) {
  return static_cast<uint32_t>(value);
}

// Checks a field that the other fields determine, so that one format has one spelling.
absl::Status RequireField(const TensorFormat& format, const char* field, uint32_t seen,
                          uint32_t wanted) {
  if (seen == wanted) return absl::OkStatus();
  return Refuse(absl::StrCat(field, " of ", NameOf(format.codec)).c_str(), seen,
                absl::StrCat(wanted));
}

absl::Status ValidateEnums(const TensorFormat& format) {
  if (std::string(NameOf(format.codec)) == "unknown") {
    return Refuse("codec", Number(format.codec), absl::StrCat("1 to 10 (", kCodecNames, ")"));
  }
  if (!Contains(kDtypes, format.dtype)) {
    return Refuse("dtype", Number(format.dtype), "1 to 3 (f32, f16, bf16)");
  }
  if (format.rotation != Rotation::kNone && format.rotation != Rotation::kHadamard) {
    return Refuse("rotation", Number(format.rotation), "1 (none), 2 (hadamard)");
  }
  if (format.layout < Layout::kRows || format.layout > Layout::kTransposed) {
    return Refuse("layout", Number(format.layout), "1 (rows), 2 (tiled), 3 (transposed)");
  }
  return absl::OkStatus();
}

absl::Status ValidateLayout(const TensorFormat& format) {
  if (format.layout == Layout::kRows) return absl::OkStatus();
  if (format.layout == Layout::kTransposed) {
    if (format.codec == Codec::kRaw) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("format: layout transposed has no place for ",
                                                   NameOf(format.codec), ", accepted: rows"));
  }
  if (HasTiled(format)) return absl::OkStatus();
  const std::string codes = format.codec == Codec::kRaw ? "raw elements"
                            : IsBlockFloat(format.codec)
                                ? "codes that are floats"
                                : absl::StrCat(uint32_t{format.bits}, "-bit codes");
  return absl::InvalidArgumentError(
      absl::StrCat("format: layout tiled has no place for ", codes, ", accepted: rows"));
}

absl::Status ValidateMlx(const TensorFormat& format) {
  if (!Contains(kMlxBits, format.bits)) {
    return Refuse("bits of mlx_affine", uint32_t{format.bits}, absl::StrJoin(kMlxBits, ", "));
  }
  if (!Contains(kMlxGroups, format.group_size)) {
    return Refuse("group_size of mlx_affine", format.group_size, absl::StrJoin(kMlxGroups, ", "));
  }
  return absl::OkStatus();
}

// Returns what `format` must be, given the fields that its codec leaves free.
TensorFormat Respelled(const TensorFormat& format) {
  if (format.codec == Codec::kRaw) return RawFormat(format.dtype);
  if (format.codec == Codec::kMlxAffine) {
    return MlxAffineFormat(format.bits, format.group_size, format.dtype);
  }
  if (IsBlockFloat(format.codec)) return BlockFloatFormat(format.codec);
  return GgmlFormat(format.codec);
}

absl::Status ValidateFields(const TensorFormat& format) {
  PREFIXD_RETURN_IF_ERROR(ValidateEnums(format));
  if (format.codec == Codec::kMlxAffine) PREFIXD_RETURN_IF_ERROR(ValidateMlx(format));
  const TensorFormat wanted = Respelled(format);
  PREFIXD_RETURN_IF_ERROR(
      RequireField(format, "dtype", Number(format.dtype), Number(wanted.dtype)));
  PREFIXD_RETURN_IF_ERROR(RequireField(format, "bits", format.bits, wanted.bits));
  PREFIXD_RETURN_IF_ERROR(RequireField(format, "group_size", format.group_size, wanted.group_size));
  return ValidateLayout(format);
}

// Returns the group sizes that `format`'s codec has and that divide `dim`.
std::string GroupsThatFit(const TensorFormat& format, uint32_t dim) {
  std::vector<uint32_t> fitting;
  for (uint32_t group : kMlxGroups) {
    const bool known = format.codec == Codec::kMlxAffine || group == format.group_size;
    if (known && dim % group == 0) fitting.push_back(group);
  }
  if (fitting.empty()) {
    return absl::StrCat("none, head_dim ", dim, " can only be raw",
                        dim % kNvFp4Group == 0 ? " or nvfp4" : "");
  }
  return absl::StrJoin(fitting, ", ");
}

absl::Status ValidateDim(const TensorFormat& format, uint32_t dim) {
  if (dim == 0 || dim > kMaxDim) return Refuse("head_dim", dim, absl::StrCat("1 to ", kMaxDim));
  if (format.rotation == Rotation::kHadamard && HadamardBlock(dim) < kMinHadamardBlock) {
    return absl::InvalidArgumentError(absl::StrCat("format: ", ToString(format), " has head_dim ",
                                                   dim, ", accepted with hadamard: multiples of ",
                                                   kMinHadamardBlock));
  }
  if (format.group_size == 0 || dim % format.group_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "format: group_size ", format.group_size, " of ", ToString(format),
      " does not divide head_dim ", dim, ", accepted here: ", GroupsThatFit(format, dim)));
}

absl::StatusOr<Dtype> ParseDtype(const std::string& text) {
  for (Dtype dtype : kDtypes) {
    if (text == ToString(dtype)) return dtype;
  }
  return Refuse("dtype", absl::StrCat("\"", text, "\""), "f32, f16, bf16");
}

absl::StatusOr<uint32_t> ParseNumber(const char* field, const std::string& text,
                                     const std::string& accepted) {
  uint32_t number = 0;
  // The comparison refuses "08", "+8" and " 8": one format, one spelling.
  if (absl::SimpleAtoi(text, &number) && absl::StrCat(number) == text && number <= 0xffff) {
    return number;
  }
  return Refuse(field, absl::StrCat("\"", text, "\""), accepted);
}

absl::StatusOr<TensorFormat> ParseMlx(const std::vector<std::string>& parts) {
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t bits, ParseNumber("bits of mlx_affine", parts[1],
                                                            absl::StrJoin(kMlxBits, ", ")));
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t group, ParseNumber("group_size of mlx_affine", parts[2],
                                                             absl::StrJoin(kMlxGroups, ", ")));
  PREFIXD_ASSIGN_OR_RETURN(const Dtype dtype, ParseDtype(parts[3]));
  if (!Contains(kMlxBits, bits)) {
    return Refuse("bits of mlx_affine", bits, absl::StrJoin(kMlxBits, ", "));
  }
  const TensorFormat format =
      MlxAffineFormat(static_cast<uint8_t>(bits), static_cast<uint16_t>(group), dtype);
  PREFIXD_RETURN_IF_ERROR(ValidateMlx(format));
  return format;
}

absl::StatusOr<TensorFormat> ParseInRows(const std::string& text) {
  for (Codec codec : kGgmlCodecs) {
    if (text == NameOf(codec)) return GgmlFormat(codec);
  }
  for (Codec codec : kBlockFloatCodecs) {
    if (text == NameOf(codec)) return BlockFloatFormat(codec);
  }
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() == 2 && parts[0] == "raw") {
    PREFIXD_ASSIGN_OR_RETURN(const Dtype dtype, ParseDtype(parts[1]));
    return RawFormat(dtype);
  }
  if (parts.size() == 4 && parts[0] == "mlx_affine") return ParseMlx(parts);
  return absl::InvalidArgumentError(
      absl::StrCat("format: \"", text, "\", accepted: ", kFormatNames));
}

absl::StatusOr<TensorFormat> ParsePlain(const std::string& text) {
  const bool transposed = text.ends_with(kTransposedSuffix);
  if (!transposed && !text.ends_with(kTiledSuffix)) return ParseInRows(text);
  const char* const suffix = transposed ? kTransposedSuffix : kTiledSuffix;
  const std::string in_rows = text.substr(0, text.size() - std::strlen(suffix));
  PREFIXD_ASSIGN_OR_RETURN(TensorFormat format, ParseInRows(in_rows));
  format.layout = transposed ? Layout::kTransposed : Layout::kTiled;
  PREFIXD_RETURN_IF_ERROR(ValidateLayout(format));
  return format;
}

}  // namespace

TensorFormat RawFormat(Dtype dtype) {
  return {.codec = Codec::kRaw,
          .dtype = dtype,
          .bits = static_cast<uint8_t>(DtypeBytes(dtype) * 8),
          .group_size = 0};
}

TensorFormat MlxAffineFormat(uint8_t bits, uint16_t group_size, Dtype dtype) {
  return {.codec = Codec::kMlxAffine, .dtype = dtype, .bits = bits, .group_size = group_size};
}

TensorFormat GgmlFormat(Codec codec) {
  const bool four = codec == Codec::kQ4_0 || codec == Codec::kQ4_1;
  return {.codec = codec,
          .dtype = Dtype::kF16,
          .bits = static_cast<uint8_t>(codec == Codec::kQ8_0 ? 8
                                       : four                ? 4
                                                             : 5),
          .group_size = kGgmlBlock};
}

TensorFormat BlockFloatFormat(Codec codec) {
  return {.codec = codec,
          .dtype = Dtype::kBf16,
          .bits = static_cast<uint8_t>(codec == Codec::kMxFp8 ? 8 : 4),
          .group_size = codec == Codec::kNvFp4 ? kNvFp4Group : kMxGroup};
}

bool IsBlockFloat(Codec codec) { return Contains(kBlockFloatCodecs, codec); }

TensorFormat Rotated(TensorFormat format) {
  format.rotation = Rotation::kHadamard;
  return format;
}

uint32_t HadamardBlock(uint32_t dim) { return dim & (~dim + 1); }

bool HasTiled(const TensorFormat& format) {
  return format.codec != Codec::kRaw && !IsBlockFloat(format.codec) &&
         (format.bits == 4 || format.bits == 8);
}

TensorFormat Tiled(TensorFormat format) {
  if (HasTiled(format)) format.layout = Layout::kTiled;
  return format;
}

TensorFormat InRows(TensorFormat format) {
  format.layout = Layout::kRows;
  return format;
}

TensorFormat Transposed(TensorFormat format) {
  format.layout = Layout::kTransposed;
  return format;
}

absl::Status Validate(const TensorFormat& format, uint32_t dim) {
  PREFIXD_RETURN_IF_ERROR(ValidateFields(format));
  return ValidateDim(format, dim);
}

const char* ToString(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kF16:
      return "f16";
    case Dtype::kBf16:
      return "bf16";
  }
  return "unknown";
}

std::string ToString(const TensorFormat& format) {
  if (format.rotation == Rotation::kHadamard) {
    TensorFormat plain = format;
    plain.rotation = Rotation::kNone;
    return ToString(plain) + kHadamardSuffix;
  }
  if (format.layout != Layout::kRows) {
    return absl::StrCat(ToString(InRows(format)),
                        format.layout == Layout::kTiled ? kTiledSuffix : kTransposedSuffix);
  }
  if (format.codec == Codec::kRaw) return absl::StrCat("raw/", ToString(format.dtype));
  if (format.codec == Codec::kMlxAffine) {
    return absl::StrCat("mlx_affine/", uint32_t{format.bits}, "/", format.group_size, "/",
                        ToString(format.dtype));
  }
  return NameOf(format.codec);
}

std::string ToString(const KvFormat& format) {
  if (format.key == format.value) return ToString(format.key);
  return absl::StrCat(ToString(format.key), "+", ToString(format.value));
}

absl::StatusOr<TensorFormat> ParseTensorFormat(const std::string& text) {
  if (!text.ends_with(kHadamardSuffix)) return ParsePlain(text);
  const std::string plain_text = text.substr(0, text.size() - std::strlen(kHadamardSuffix));
  PREFIXD_ASSIGN_OR_RETURN(const TensorFormat plain, ParsePlain(plain_text));
  return Rotated(plain);
}

uint32_t DtypeBytes(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

RowBytes BytesOfStoredRow(const TensorFormat& format, uint32_t dim) {
  if (format.codec == Codec::kRaw) return {.codes = dim * DtypeBytes(format.dtype)};
  const uint32_t groups = dim / format.group_size;
  if (IsBlockFloat(format.codec)) return {.codes = dim * format.bits / 8, .scales = groups};
  const uint32_t parameters = groups * DtypeBytes(format.dtype);
  if (format.codec != Codec::kMlxAffine) {
    if (format.layout == Layout::kRows) return {.codes = groups * GgmlBlockBytes(format.codec)};
    return {.codes = dim * format.bits / 8,
            .scales = parameters,
            .biases = format.codec == Codec::kQ4_1 ? parameters : 0};
  }
  return {.codes = dim * format.bits / 8, .scales = parameters, .biases = parameters};
}

UnitLayout LayoutOfUnit(const TensorFormat& format, uint32_t dim, uint32_t page_tokens) {
  const RowBytes row = BytesOfStoredRow(format, dim);
  UnitLayout layout;
  layout.slots = format.layout == Layout::kTiled ? base::AlignUp(uint64_t{page_tokens}, kTiledSlots)
                                                 : page_tokens;
  layout.scales_offset = layout.slots * row.codes;
  layout.biases_offset = layout.scales_offset + layout.slots * row.scales;
  layout.payload_bytes = layout.slots * row.total();
  layout.unit_bytes = base::AlignUp(layout.payload_bytes, kUnitAlignment);
  return layout;
}

}  // namespace prefixd::quant
