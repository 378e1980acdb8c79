#include "client/cli/carried_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/status.h"
#include "client/cli/identity_file.h"
#include "interop/llama_state.h"

namespace prefixd::cli {
namespace {

constexpr char kTokensKey[] = "prefixd_tokens", kIdentityKey[] = "prefixd_identity";

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}
absl::Status Bad(const std::string& path, const absl::Status& status) {
  return Bad(path, std::string(status.message()));
}

// --- mlx-lm

absl::StatusOr<CarriedFile> ReadMlx(const CarryRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const interop::PromptCache cache,
                           interop::ReadPromptCache(request.path));
  absl::StatusOr<Carried> carried = CarriedOf(cache);
  if (!carried.ok()) return Bad(request.path, carried.status());
  CarriedFile file{.carried = *std::move(carried)};
  if (const auto said = cache.metadata.find(kTokensKey); said != cache.metadata.end()) {
    const std::vector<std::string> ids = absl::StrSplit(said->second, ',', absl::SkipEmpty());
    for (const std::string& id : ids) {
      if (!absl::SimpleAtoi(id, &file.tokens.emplace_back())) {
        return Bad(request.path, absl::StrCat("metadata ", kTokensKey, " holds \"", id, "\""));
      }
    }
  }
  const auto said = cache.metadata.find(kIdentityKey);
  if (said != cache.metadata.end() && !request.spec.has_value()) {
    PREFIXD_ASSIGN_OR_RETURN(file.spec, ReadIdentity(said->second, request.salt));
  }
  return file;
}

// Returns what mlx_lm.generate --prompt-cache-file wants to read.
std::map<std::string, std::string> MetadataFor(const CarryRequest& request, const SpaceSpec& spec,
                                               const interop::PromptCache* like) {
  std::map<std::string, std::string> metadata = {{"model", spec.model}, {"tokenizer_config", "{}"}};
  if (like != nullptr) {
    for (const auto& [name, value] : like->metadata) metadata[name] = value;
  }
  if (!request.model.empty()) metadata["model"] = request.model;
  return metadata;
}

absl::Status WriteMlx(const CarryRequest& request, const CarriedFile& file) {
  std::optional<interop::PromptCache> like;
  if (!request.like.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(like, interop::ReadPromptCache(request.like));
  }
  interop::PromptCache cache;
  cache.style = request.meta_state ? interop::PromptCacheStyle::kMetaState
                                   : interop::PromptCacheStyle::kScalars;
  auto caches = CachesOf(file.carried, like.has_value() ? &*like : nullptr);
  if (!caches.ok()) return Bad(request.path, caches.status());
  cache.layers = *std::move(caches);
  cache.metadata = MetadataFor(request, *file.spec, like.has_value() ? &*like : nullptr);
  cache.metadata[kIdentityKey] = WriteIdentity(*file.spec);
  cache.metadata[kTokensKey] = absl::StrJoin(file.tokens, ",");
  return interop::WritePromptCache(request.path, cache);
}

// --- llama.cpp

absl::StatusOr<std::vector<std::byte>> ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Bad(path, "cannot be read");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto bytes = std::as_bytes(std::span(text));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

// Writes the whole file or nothing: writes PATH.part, then renames it.
absl::Status WriteBytes(const std::string& path, std::span<const std::byte> bytes) {
  const std::string part = absl::StrCat(path, ".part");
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file && std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno == 0 ? EIO : errno;
  std::remove(part.c_str());
  return absl::ErrnoToStatus(error, path);
}

absl::StatusOr<CarriedFile> ReadLlama(const CarryRequest& request) {
  if (!request.spec.has_value() || request.spec->layers.empty()) {
    return Bad(request.path,
               "does not say its heads and dims: give --space, or an --identity with layers");
  }
  std::vector<interop::LlamaLayerShape> shapes;
  for (const LayerSpec& layer : request.spec->layers) {
    if (layer.kind != LayerKind::kFull) {
      return Bad(request.path, absl::StrCat("layer ", shapes.size(),
                                            " of the space is not full attention: of llama.cpp "
                                            "only such states are read"));
    }
    shapes.push_back(
        {.kv_heads = layer.kv_heads, .key_dim = layer.key_dim, .value_dim = layer.value_dim});
  }
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<std::byte> blob, ReadBytes(request.path));
  absl::StatusOr<interop::LlamaState> state = interop::ReadLlamaState(blob, shapes);
  if (!state.ok()) return Bad(request.path, state.status());
  CarriedFile file{.tokens = std::move(state->tokens),
                   .values_transposed = state->values_transposed};
  for (interop::KvRows& rows : state->layers) {
    file.carried.tokens = rows.offset;
    file.carried.layers.push_back(
        {.name = absl::StrCat("layer ", file.carried.layers.size()), .rows = std::move(rows)});
  }
  return file;
}

absl::Status WriteLlama(const CarryRequest& request, const CarriedFile& file) {
  interop::LlamaState state{
      .tokens = file.tokens, .layers = {}, .values_transposed = file.values_transposed};
  for (const CarriedLayer& layer : file.carried.layers) {
    if (!layer.kept_as_rows() || layer.rows->max_size != 0) {
      return Bad(request.path, absl::StrCat(layer.name,
                                            " of the space is not full attention: of llama.cpp "
                                            "only such states are written"));
    }
    state.layers.push_back(*layer.rows);
  }
  const absl::StatusOr<std::vector<std::byte>> blob = interop::WriteLlamaState(state);
  if (!blob.ok()) return Bad(request.path, blob.status());
  return WriteBytes(request.path, *blob);
}

}  // namespace

absl::StatusOr<CarriedFile> ReadCarriedFile(const CarryRequest& request) {
  return request.format == CarryFormat::kLlama ? ReadLlama(request) : ReadMlx(request);
}

absl::Status WriteCarriedFile(const CarryRequest& request, const CarriedFile& file) {
  return request.format == CarryFormat::kLlama ? WriteLlama(request, file)
                                               : WriteMlx(request, file);
}

}  // namespace prefixd::cli
