// client/python/prefixd/engine/files.py and mlx/geometry.py (_first_rotation) say the same in
// Python: tests/mlx/test_files.py compares them.
#include "client/cli/model_folder.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "interop/checkpoint_digest.h"

namespace prefixd::cli {
namespace {

using nlohmann::json;

constexpr std::array kTokenizerFiles = {"tokenizer.json", "tokenizer.model",
                                        "tokenizer_config.json", "vocab.json", "merges.txt"};
constexpr std::array kAdapterFiles = {"adapters.safetensors", "adapter_config.json"};
constexpr size_t kMostScalingBytes = 64;  // the daemon's limits
constexpr double kMostRotaryDim = 16384;

absl::Status Bad(const std::string& folder, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(folder, ": ", what));
}

// Returns the number as Python's repr() writes it: the fewest digits that read back the same, an
// exponent below 1e-4 and from 1e16 on.
std::string Repr(double number) {
  const double size = std::fabs(number);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[64];
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), number, format);
  std::string said(text, end.ptr);
  if (plain && said.find('.') == std::string::npos) said += ".0";
  return said;
}

// nlohmann's object keeps its keys in order of their bytes, which is that of their code points.
void Write(const json& value, std::string* to) {
  const char* between = "";
  if (value.is_object()) {
    *to += "{";
    for (const auto& [name, inner] : value.items()) {
      absl::StrAppend(to, between, json(name).dump(-1, ' ', /*ensure_ascii=*/true), ": ");
      Write(inner, to);
      between = ", ";
    }
    *to += "}";
  } else if (value.is_array()) {
    *to += "[";
    for (const json& inner : value) {
      *to += between;
      Write(inner, to);
      between = ", ";
    }
    *to += "]";
  } else if (value.is_number_float()) {
    *to += Repr(value.get<double>());
  } else {
    *to += value.dump(-1, ' ', /*ensure_ascii=*/true);
  }
}

std::string Dump(const json& value) {
  std::string text;
  Write(value, &text);
  return text;
}

absl::StatusOr<std::string> ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Bad(path.string(), "cannot be read");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<json> ReadConfig(const std::filesystem::path& folder) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string text, ReadText(folder / "config.json"));
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Bad(folder.string(), "config.json is no JSON object");
  return config;
}

// Returns the value without the fields that are known not to change a row of K or V.
json OfTheModel(const json& value) {
  if (!value.is_object()) return value;
  json kept = json::object();
  for (const auto& [name, inner] : value.items()) {
    if (name == "_name_or_path" || name == "transformers_version") continue;
    if (!absl::StartsWith(name, "eos_")) kept[name] = OfTheModel(inner);
  }
  return kept;
}

std::string Text(const base::Digest256& digest) { return std::string(base::AsText(digest)); }

absl::StatusOr<base::Digest256> Weights(const std::filesystem::path& folder, const json& config,
                                        const interop::OnRead& on_read) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 tensors,
                           interop::DigestCheckpoint(folder.string(), on_read));
  std::string said = Text(tensors) + Dump(OfTheModel(config));
  if (const auto code = config.find("model_file"); code != config.end() && code->is_string()) {
    PREFIXD_ASSIGN_OR_RETURN(
        const base::Digest256 file,
        interop::DigestWholeFile((folder / code->get<std::string>()).string()));
    said += Text(file);
  }
  return base::Sha256(base::AsBytes(said));
}

template <size_t kCount>
absl::StatusOr<base::Digest256> FilesDigest(const std::filesystem::path& folder,
                                            const std::array<const char*, kCount>& names,
                                            bool all) {
  std::string said;
  for (const char* name : names) {
    if (!all && !std::filesystem::exists(folder / name)) continue;
    PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 file,
                             interop::DigestWholeFile((folder / name).string()));
    said += name + Text(file);
  }
  return base::Sha256(base::AsBytes(said));
}

bool IsTrue(const json& value) {  // as Python sees it
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return value.is_string() ? !value.get_ref<const std::string&>().empty() : !value.empty();
}

// Returns the number that a field of the first object that has it says.
absl::StatusOr<double> Number(const json& first, const json& second, const char* name,
                              double otherwise) {
  const json& from = first.contains(name) ? first : second;
  const auto found = from.find(name);
  if (found == from.end()) return otherwise;
  if (found->is_number()) return found->get<double>();
  return absl::InvalidArgumentError(absl::StrCat(name, " is no number"));
}

absl::StatusOr<double> HeadDim(const json& config) {
  PREFIXD_ASSIGN_OR_RETURN(const double said, Number(config, config, "head_dim", 0));
  if (said > 0) return said;
  PREFIXD_ASSIGN_OR_RETURN(const double hidden, Number(config, config, "hidden_size", 0));
  PREFIXD_ASSIGN_OR_RETURN(const double heads, Number(config, config, "num_attention_heads", 0));
  if (hidden > 0 && heads > 0) return std::floor(hidden / heads);
  return absl::InvalidArgumentError("neither head_dim nor hidden_size and num_attention_heads");
}

absl::StatusOr<RopeSpec> Rope(json config) {
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    const json inner = *text;
    config.update(inner);
  }
  json said = config.value("rope_parameters", json());
  if (!said.is_object()) said = json::object();
  PREFIXD_ASSIGN_OR_RETURN(const double theta, Number(said, config, "rope_theta", 10000));
  PREFIXD_ASSIGN_OR_RETURN(const double share, Number(said, config, "partial_rotary_factor", 1));
  PREFIXD_ASSIGN_OR_RETURN(const double dim, HeadDim(config));
  json others = json::object();
  for (const auto& [name, value] : config.items()) {
    if (name == "rope_theta" || name == "rope_traditional") continue;
    if (absl::StartsWith(name, "rope_") && IsTrue(value)) others[name] = value;
  }
  const std::string scaling = others.empty() ? "" : Dump(others);
  const double rotary = std::trunc(dim * share);
  if (scaling.size() > kMostScalingBytes || rotary < 0 || rotary > kMostRotaryDim ||
      std::fmod(rotary, 2) != 0 || !std::isfinite(theta) || theta <= 0) {
    return absl::InvalidArgumentError(
        "its rotation is one that only the Python package reads (prefixd.rope_of)");
  }
  const json traditional = config.value("rope_traditional", json());
  return RopeSpec{.theta = theta,
                  .scaling = scaling,
                  .rotary_dim = static_cast<uint32_t>(rotary),
                  .interleaved = IsTrue(traditional)};
}

Digest ToDigest(const base::Digest256& digest) { return digest; }

}  // namespace

absl::StatusOr<std::string> PythonDump(const std::string& text) {
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("no JSON");
  return Dump(value);
}

absl::StatusOr<SpaceSpec> IdentityOfFolder(const std::string& folder, const std::string& adapter,
                                           const interop::OnRead& on_read) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  const bool ends_in_slash = !path.has_filename();
  PREFIXD_ASSIGN_OR_RETURN(const json config, ReadConfig(path));
  SpaceSpec spec;
  spec.model = (ends_in_slash ? path.parent_path() : path).filename().string();
  PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 weights, Weights(path, config, on_read));
  spec.weights_digest = ToDigest(weights);
  PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 tokenizer,
                           FilesDigest(path, kTokenizerFiles, /*all=*/false));
  spec.tokenizer_digest = ToDigest(tokenizer);
  if (!adapter.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const base::Digest256 files,
                             FilesDigest(adapter, kAdapterFiles, /*all=*/true));
    spec.adapter_digest = ToDigest(files);
  }
  const absl::StatusOr<RopeSpec> rope = Rope(config);
  if (!rope.ok()) {
    return Bad(folder, absl::StrCat("config.json: ", std::string(rope.status().message())));
  }
  spec.rope = *rope;
  return spec;
}

}  // namespace prefixd::cli
