#include "client/worker/kv_format.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "base/status.h"
#include "quant/format.h"

namespace prefixd::worker {
namespace {

constexpr const char* kBitsChoices =
    "2, 3, 4, 5, 6 or 8, or two of them for keys and values as in 8,4";
constexpr const char* kGroupChoices =
    "32, 64 or 128, or two of them for keys and values as in 64,32";
const std::vector<int> kBits = {2, 3, 4, 5, 6, 8};
const std::vector<int> kGroups = {32, 64, 128};

struct Pair {
  int key = 0;
  int value = 0;
};

// Returns the choice that `text` spells to the letter: "08" and "+8" are none.
std::optional<int> OneOf(const std::string& text, const std::vector<int>& choices) {
  for (int choice : choices) {
    if (text == std::to_string(choice)) return choice;
  }
  return std::nullopt;
}

// Parses "8" or "8,4".
std::optional<Pair> ParsePair(const std::string& text, const std::vector<int>& choices) {
  const size_t comma = text.find(',');
  const std::optional<int> key = OneOf(text.substr(0, comma), choices);
  if (!key.has_value()) return std::nullopt;
  if (comma == std::string::npos) return Pair{*key, *key};
  const std::optional<int> value = OneOf(text.substr(comma + 1), choices);
  if (!value.has_value()) return std::nullopt;
  return Pair{*key, *value};
}

absl::Status RefuseFlag(const char* flag, const std::string& seen, const char* choices) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", seen, "\", choose ", choices));
}

absl::StatusOr<Dtype> ParseDtype(const std::string& text, Dtype otherwise) {
  if (text.empty()) return otherwise;
  if (text == "f32") return Dtype::kF32;
  if (text == "f16") return Dtype::kF16;
  if (text == "bf16") return Dtype::kBf16;
  return RefuseFlag("--kv-dtype", text, "f32, f16 or bf16");
}

absl::StatusOr<Rotation> ParseRotation(const std::string& text) {
  if (text.empty() || text == "none") return Rotation::kNone;
  if (text == "hadamard") return Rotation::kHadamard;
  return RefuseFlag("--kv-rotation", text, "none or hadamard");
}

absl::StatusOr<Layout> ParseLayout(const std::string& text) {
  if (text.empty() || text == "tiled") return Layout::kTiled;
  if (text == "rows") return Layout::kRows;
  return RefuseFlag("--kv-layout", text, "rows or tiled");
}

const char* LayoutName(const KvFormat& format) {
  const bool key = format.key.layout == Layout::kTiled;
  const bool value = format.value.layout == Layout::kTiled;
  return key && value ? ", tiled" : key ? ", keys tiled" : value ? ", values tiled" : "";
}

std::string DescribeTensor(const TensorFormat& format) {
  return absl::StrCat(static_cast<int>(format.bits), "-bit group ", format.group_size);
}

bool IsRaw(const KvFormat& format) { return format.key.codec == Codec::kRaw; }

absl::StatusOr<KvChoice> ChoosePlain(const KvFlags& flags) {
  if (flags.bits.empty()) {
    if (!flags.group_size.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-group-size: \"", flags.group_size,
          "\" without --kv-bits; raw values have no groups, choose --kv-bits ", kBitsChoices));
    }
    if (flags.quantized_start.has_value() || flags.min_tokens.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          flags.quantized_start.has_value() ? "--quantized-kv-start" : "--min-quantize-tokens",
          ": nothing is quantized without --kv-bits, choose --kv-bits ", kBitsChoices));
    }
    PREFIXD_ASSIGN_OR_RETURN(const Dtype dtype, ParseDtype(flags.dtype, Dtype::kF32));
    return KvChoice{.format = Raw(dtype), .rule = {}, .warning = ""};
  }
  const std::optional<Pair> bits = ParsePair(flags.bits, kBits);
  if (!bits.has_value()) return RefuseFlag("--kv-bits", flags.bits, kBitsChoices);
  const std::string groups_text = flags.group_size.empty() ? "64" : flags.group_size;
  const std::optional<Pair> groups = ParsePair(groups_text, kGroups);
  if (!groups.has_value()) return RefuseFlag("--kv-group-size", groups_text, kGroupChoices);
  PREFIXD_ASSIGN_OR_RETURN(const Dtype dtype, ParseDtype(flags.dtype, Dtype::kF16));

  KvChoice choice;
  choice.format = MlxAffine(bits->key, groups->key, bits->value, groups->value, dtype);
  choice.rule = {.start = flags.quantized_start.value_or(0),
                 .min_tokens = flags.min_tokens.value_or(0)};
  if (bits->key < bits->value) {
    choice.warning = absl::StrCat(
        "--kv-bits ", flags.bits, " stores keys coarser than values; keys are the more sensitive, ",
        bits->value, ",", bits->key, " takes the same bytes and usually answers better");
  }
  return choice;
}

}  // namespace

absl::StatusOr<KvChoice> ChooseKvFormat(const KvFlags& flags) {
  PREFIXD_ASSIGN_OR_RETURN(const Rotation rotation, ParseRotation(flags.rotation));
  PREFIXD_ASSIGN_OR_RETURN(const Layout layout, ParseLayout(flags.layout));
  PREFIXD_ASSIGN_OR_RETURN(KvChoice choice, ChoosePlain(flags));
  if (layout == Layout::kTiled) choice.format = Tiled(choice.format);
  if (rotation == Rotation::kHadamard) choice.format = Rotated(choice.format);
  return choice;
}

uint32_t QuantizeRule::RawTokens(uint32_t prompt_tokens, uint32_t block_tokens) const {
  if (prompt_tokens >= min_tokens) return start;
  return std::max(start, (min_tokens + block_tokens - 1) / block_tokens * block_tokens);
}

std::vector<KvFormat> KvChoice::Ladder() const {
  if (!rule.mixes()) return {format};
  const KvFormat raw = Raw(format.key.dtype);
  return {format.key.rotation == Rotation::kHadamard ? Rotated(raw) : raw, format};
}

absl::Status CheckKvFormat(const KvFormat& format, uint32_t head_dim) {
  for (const TensorFormat* tensor : {&format.key, &format.value}) {
    if (tensor->group_size != 0 && head_dim % tensor->group_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("--kv-group-size: ", tensor->group_size,
                                                     " does not divide head_dim ", head_dim));
    }
    if (tensor->rotation != Rotation::kNone && head_dim % 16 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-rotation: hadamard wants a head_dim that 16 divides, this one is ", head_dim));
    }
  }
  return absl::OkStatus();
}

AttentionChoice ChooseAttention(const KvFormat& format) {
  const KvFormat tiled = Tiled(format);
  if (tiled.key.layout != Layout::kTiled || tiled.value.layout != Layout::kTiled) {
    return {{}, "what formats without a tiled layout are decoded in"};
  }
  const bool bytes = std::min(format.key.bits, format.value.bits) == 8;
  return {{.decode = AttendMode::kFast},
          bytes ? "fast decoding errs by 0.05 %, 8 bits themselves by 0.8 %"
                : "fast decoding errs by up to 1.8 %, 4 bits themselves by 9 %"};
}

std::string Describe(const AttentionModes& modes) {
  return absl::StrCat("prefill ", modes.prefill == AttendMode::kPrecise ? "precise" : "fast",
                      ", decode ", modes.decode == AttendMode::kPrecise ? "precise" : "fast");
}

std::string Describe(const KvFormat& format) {
  const char* rotation = format.key.rotation == Rotation::kHadamard ? ", hadamard" : "";
  if (IsRaw(format)) return absl::StrCat("raw ", quant::ToString(format.key.dtype), rotation);
  const std::string keys = DescribeTensor(format.key);
  const std::string values = DescribeTensor(format.value);
  const std::string both = keys == values ? keys : absl::StrCat("keys ", keys, ", values ", values);
  return absl::StrCat(both, " (", quant::ToString(format.key.dtype), " scales)", rotation,
                      LayoutName(format));
}

}  // namespace prefixd::worker
