#include "client/cli/carried_layers.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "interop/window_record.h"

namespace prefixd::cli {
namespace {

using interop::KvRows;
using interop::MlxCache;

bool IsStates(const MlxCache& cache) {
  return cache.class_name == "ArraysCache" || cache.class_name == "MambaCache";
}

template <typename Status>
absl::Status At(const std::string& name, const Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
}

absl::Status ReadOne(const MlxCache& cache, CarriedLayer* layer) {
  if (IsStates(cache)) {
    PREFIXD_ASSIGN_OR_RETURN(const interop::StateArrays state, interop::ReadStateArrays(cache));
    layer->state = interop::SnapshotOf(state);
    return absl::OkStatus();
  }
  PREFIXD_ASSIGN_OR_RETURN(layer->rows, interop::ReadKvRows(cache));
  if (layer->rows->is_prefix()) return absl::OkStatus();
  PREFIXD_ASSIGN_OR_RETURN(layer->state, interop::RecordOf(*layer->rows));
  return absl::OkStatus();
}

absl::Status Add(const MlxCache& cache, std::string name, Carried* carried) {
  CarriedLayer layer{.name = std::move(name)};
  if (const absl::Status read = ReadOne(cache, &layer); !read.ok()) return At(layer.name, read);
  if (layer.rows.has_value()) {
    if (carried->tokens == 0) carried->tokens = layer.rows->offset;
    if (carried->tokens != layer.rows->offset) {
      return absl::InvalidArgumentError(absl::StrCat(layer.name, " has ", layer.rows->offset,
                                                     " tokens, others have ", carried->tokens));
    }
  }
  carried->layers.push_back(std::move(layer));
  return absl::OkStatus();
}

// --- back to caches

bool IsRotating(const MlxCache& cache) {
  return cache.class_name == "RotatingKVCache" || cache.class_name == "QuantizedRotatingKVCache";
}

absl::StatusOr<MlxCache> StateLike(const CarriedLayer& layer, uint32_t tokens,
                                   const MlxCache* like) {
  if (like == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeps a state of ", layer.state.size(),
                     " bytes: of which arrays is said by a prompt cache of the model, --like"));
  }
  if (IsRotating(*like)) {
    PREFIXD_ASSIGN_OR_RETURN(const KvRows shape, interop::ReadKvRows(*like));
    PREFIXD_ASSIGN_OR_RETURN(const KvRows rows, interop::RowsOfRecord(shape, tokens, layer.state));
    return interop::MlxCacheOf(rows);
  }
  PREFIXD_ASSIGN_OR_RETURN(const interop::StateArrays shape, interop::ReadStateArrays(*like));
  PREFIXD_ASSIGN_OR_RETURN(const interop::StateArrays state,
                           interop::StateOfSnapshot(shape, layer.state));
  return interop::MlxCacheOf(state);
}

absl::StatusOr<MlxCache> RowsLike(const CarriedLayer& layer, const MlxCache* like) {
  const bool slides = layer.rows->max_size != 0;
  if (like != nullptr && (IsStates(*like) || IsRotating(*like) != slides)) {
    return absl::InvalidArgumentError(absl::StrCat(
        slides ? "slides" : "is full attention", ", the file of --like has a ", like->class_name));
  }
  return interop::MlxCacheOf(*layer.rows);
}

// Turns the layers of a space into caches, one after another.
class Writer {
 public:
  explicit Writer(const Carried& carried) : carried_(carried) {}

  absl::StatusOr<MlxCache> Next(const MlxCache* like) {
    if (like != nullptr && like->class_name == "CacheList") {
      MlxCache list{.class_name = like->class_name};
      for (const MlxCache& child : like->children) {
        PREFIXD_ASSIGN_OR_RETURN(list.children.emplace_back(), Next(&child));
      }
      return list;
    }
    if (left() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the file of --like has more caches than the space layers: ", carried_.layers.size()));
    }
    const CarriedLayer& layer = carried_.layers[next_++];
    absl::StatusOr<MlxCache> cache =
        layer.kept_as_rows() ? RowsLike(layer, like) : StateLike(layer, carried_.tokens, like);
    if (!cache.ok()) return At(layer.name, cache.status());
    return cache;
  }
  size_t left() const { return carried_.layers.size() - next_; }

 private:
  const Carried& carried_;
  size_t next_ = 0;
};

quant::KvFormat FormatOf(const KvRows& rows) { return {rows.key.format, rows.value.format}; }

std::string KindOf(const LayerSpec& spec) {
  switch (spec.kind) {
    case LayerKind::kFull:
      return "full attention";
    case LayerKind::kSliding:
      return absl::StrCat("a window of ", spec.window, " tokens and the first ", spec.sink_tokens);
    case LayerKind::kState:
      return absl::StrCat("a state of ", spec.state_bytes, " bytes");
  }
  return "another kind";
}

}  // namespace

absl::StatusOr<Carried> CarriedOf(const interop::PromptCache& file) {
  Carried carried;
  for (size_t i = 0; i < file.layers.size(); ++i) {
    const MlxCache& cache = file.layers[i];
    const std::string name = absl::StrCat("layer ", i);
    if (cache.class_name != "CacheList") {
      PREFIXD_RETURN_IF_ERROR(Add(cache, name, &carried));
      continue;
    }
    for (size_t child = 0; child < cache.children.size(); ++child) {
      PREFIXD_RETURN_IF_ERROR(Add(cache.children[child], absl::StrCat(name, ".", child), &carried));
    }
  }
  return carried;
}

absl::StatusOr<std::vector<MlxCache>> CachesOf(const Carried& carried,
                                               const interop::PromptCache* like) {
  std::vector<MlxCache> caches;
  Writer writer(carried);
  const size_t count = like != nullptr ? like->layers.size() : carried.layers.size();
  for (size_t i = 0; i < count; ++i) {
    PREFIXD_ASSIGN_OR_RETURN(caches.emplace_back(),
                             writer.Next(like != nullptr ? &like->layers[i] : nullptr));
  }
  if (writer.left() == 0) return caches;
  return absl::InvalidArgumentError(
      absl::StrCat("the file of --like has ", carried.layers.size() - writer.left(),
                   " caches, the space ", carried.layers.size(), " layers"));
}

LayerSpec SpecOf(const CarriedLayer& layer) {
  if (!layer.kept_as_rows()) return {.kind = LayerKind::kState, .state_bytes = layer.state.size()};
  const KvRows& rows = *layer.rows;
  LayerSpec spec{.kv_heads = rows.kv_heads,
                 .key_dim = rows.key.dim,
                 .value_dim = rows.value.dim,
                 .formats = {{.key = rows.key.format, .value = rows.value.format}}};
  if (rows.max_size == 0) return spec;
  spec.kind = LayerKind::kSliding;
  spec.window = rows.max_size > rows.keep ? rows.max_size - rows.keep : 0;  // 0 is refused later
  spec.sink_tokens = rows.keep;
  return spec;
}

absl::Status CheckFits(const CarriedLayer& layer, const LayerSpec& spec) {
  const LayerSpec own = SpecOf(layer);
  if (own.kind == spec.kind && own.window == spec.window && own.sink_tokens == spec.sink_tokens &&
      own.state_bytes == spec.state_bytes) {
    return absl::OkStatus();
  }
  std::string seen = KindOf(own);
  if (layer.rows.has_value() && !layer.kept_as_rows()) {
    seen = absl::StrCat("a rotating cache that has wrapped at token ", layer.rows->offset, ", ",
                        seen, " there and no prefix");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(layer.name, " is ", seen, ", the space has ", KindOf(spec)));
}

std::string FormatName(const Carried& carried) {
  for (const CarriedLayer& layer : carried.layers) {
    if (layer.kept_as_rows()) return quant::ToString(FormatOf(*layer.rows));
  }
  return "state";
}

uint64_t BytesOf(const Carried& carried) {
  uint64_t bytes = 0;
  for (const CarriedLayer& layer : carried.layers) {
    bytes += layer.state.size();
    if (!layer.kept_as_rows()) continue;
    for (const interop::RowsOfTensor* tensor : {&layer.rows->key, &layer.rows->value}) {
      bytes += tensor->codes.size() + tensor->scales.size() + tensor->biases.size();
    }
  }
  return bytes;
}

}  // namespace prefixd::cli
