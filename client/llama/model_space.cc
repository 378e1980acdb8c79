#include "client/llama/model_space.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "client/llama/snapshot.h"

namespace prefixd::llama {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("llama.cpp: ", parts...));
}

TensorFormat FormatOf(TensorFormat format, uint32_t rotation, bool transposed) {
  if (rotation != 0) format.rotation = Rotation::kHadamard;
  if (transposed) format.layout = Layout::kTransposed;
  return format;
}

// The keys of a GGUF file that belong to its architecture.
class Model {
 public:
  explicit Model(const interop::Gguf& gguf)
      : gguf_(gguf), name_(gguf.Text("general.architecture")) {}
  const std::string& name() const { return name_; }
  std::string Key(const std::string& key) const { return absl::StrCat(name_, ".", key); }
  uint64_t Number(const std::string& key, uint64_t otherwise = 0) const {
    return gguf_.Number(Key(key), otherwise);
  }
  double Real(const std::string& key, double otherwise) const {
    return gguf_.Real(Key(key), otherwise);
  }
  std::string Text(const std::string& key) const { return gguf_.Text(Key(key)); }
  // Returns a number, or the first of a list of them for each layer.
  uint64_t First(const std::string& key) const {
    const std::vector<uint64_t> all =
        gguf_.Numbers(Key(key), static_cast<size_t>(Number("block_count", 1)));
    return all.empty() ? 0 : all[0];
  }
  // Returns the elements of a head where the file names none.
  uint64_t HeadDim() const {
    const uint64_t heads = First("attention.head_count");
    return heads == 0 ? 0 : Number("embedding_length") / heads;
  }
  bool Has(const std::string& key) const { return gguf_.Has(Key(key)); }

 private:
  const interop::Gguf& gguf_;
  const std::string name_;
};

RopeSpec RopeOf(const Model& model) {
  RopeSpec rope;
  rope.theta = model.Real("rope.freq_base", 10000);
  rope.rotary_dim = static_cast<uint32_t>(
      model.Number("rope.dimension_count", model.Number("attention.key_length", model.HeadDim())));
  rope.scaling = model.Text("rope.scaling.type");
  for (const char* const key : {"rope.scaling.factor", "rope.scaling.original_context_length",
                                "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"}) {
    if (model.Has(key)) rope.scaling_params.push_back(model.Real(key, 0));
  }
  return rope;
}

// Returns whether llama.cpp may turn the keys of a context by its file's factors for long ones.
bool IsLong(const Model& model, uint64_t context_tokens) {
  const uint64_t original = model.Number("rope.scaling.original_context_length");
  return original != 0 && context_tokens > original;
}

// Returns whether a state of the context does not say all that it should of the rotation.
bool IsRotationUnknown(const Model& model, const interop::LlamaContext& context) {
  const auto unknown = [&](const std::vector<interop::LlamaTensor>& tensors, const char* length) {
    const auto dim = static_cast<uint32_t>(model.Number(length, model.HeadDim()));
    return std::ranges::any_of(tensors, [&](const interop::LlamaTensor& tensor) {
      return interop::IsRotationUnknown(context, tensor, dim);
    });
  };
  return std::ranges::any_of(context.caches, [&](const interop::LlamaCache& cache) {
    return unknown(cache.keys, "attention.key_length") ||
           unknown(cache.values, "attention.value_length");
  });
}

Digest DigestOf(const Digest& file, const interop::LlamaContext& context, const ContextFacts& facts,
                bool is_long, bool is_rotation_unknown) {
  base::ByteWriter out;
  out.Framed("prefixd/1/llama.cpp");
  out.Raw(file);
  for (const interop::LlamaCache& cache : context.caches) {
    out.Fixed(cache.key_rotation);
    out.Fixed(cache.value_rotation);
  }
  // No layer of the space says what the rows in a snapshot are.
  if (context.caches.size() > 1) {
    for (const std::vector<interop::LlamaTensor>* const tensors :
         {&context.caches[1].keys, &context.caches[1].values}) {
      for (const interop::LlamaTensor& tensor : *tensors) {
        out.Framed(quant::ToString(tensor.format));
        out.Fixed(tensor.token_bytes);
      }
    }
  }
  out.Framed(facts.adapters);
  if (is_long) out.Framed("longer than the original context");
  if (is_rotation_unknown) out.Framed("build " + facts.build);
  return base::Sha256(base::AsBytes(out.bytes()));
}

// Returns how many rows of `dim` elements a token of the tensor has.
absl::StatusOr<uint32_t> Heads(const char* what, size_t layer, const interop::LlamaTensor& tensor,
                               uint32_t dim) {
  const absl::Status fits = quant::Validate(tensor.format, dim);
  if (!fits.ok()) return Bad("layer ", layer, ", ", what, ": ", fits.message());
  const uint64_t row = quant::BytesOfStoredRow(tensor.format, dim).codes;
  if (tensor.token_bytes % row == 0 && tensor.token_bytes != 0) {
    return static_cast<uint32_t>(tensor.token_bytes / row);
  }
  return Bad("layer ", layer, ", ", what, ": a token has ", tensor.token_bytes,
             " bytes, by the file heads of ", dim, " elements, ", row, " bytes each");
}

// Returns a layer of the first cache. A state does not say which layer of the model it is, nor its
// number of heads: a row has all of them.
absl::StatusOr<LayerSpec> LayerOf(const Model& model, const interop::LlamaCache& cache,
                                  size_t number) {
  const auto key_dim = static_cast<uint32_t>(model.Number("attention.key_length", model.HeadDim()));
  const auto value_dim =
      static_cast<uint32_t>(model.Number("attention.value_length", model.HeadDim()));
  const interop::LlamaTensor &keys = cache.keys[number], &values = cache.values[number];
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t heads, Heads("keys", number, keys, key_dim));
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t of_values, Heads("values", number, values, value_dim));
  if (heads != of_values) {
    return Bad("layer ", number, " has ", heads, " heads of keys and ", of_values, " of values");
  }
  return LayerSpec{.kv_heads = heads,
                   .key_dim = key_dim,
                   .value_dim = value_dim,
                   .formats = {{.key = FormatOf(keys.format, cache.key_rotation, false),
                                .value = FormatOf(values.format, cache.value_rotation,
                                                  cache.values_transposed)}}};
}

}  // namespace

absl::StatusOr<SpaceSpec> SpaceOf(const interop::Gguf& gguf, const Digest& file_digest,
                                  const interop::LlamaContext& context, const ContextFacts& facts) {
  const Model model(gguf);
  if (model.name().empty()) return Bad("the file names no architecture");
  const bool is_rotation_unknown = IsRotationUnknown(model, context);
  if (is_rotation_unknown && facts.build.empty()) {
    return Bad(
        "states of version ", context.version,
        " do not say whether quantized K and V are rotated, as those of version 4 do: it needs a "
        "later llama.cpp, or K and V that are not quantized");
  }
  SpaceSpec spec{
      .model = gguf.Text("general.name", model.name()),
      .weights_digest = DigestOf(file_digest, context, facts, IsLong(model, facts.context_tokens),
                                 is_rotation_unknown),
      .tokenizer_digest = file_digest,
      .rope = RopeOf(model),
      .salt = facts.salt};
  for (size_t number = 0; number < context.caches[0].keys.size(); ++number) {
    PREFIXD_ASSIGN_OR_RETURN(LayerSpec layer, LayerOf(model, context.caches[0], number));
    spec.layers.push_back(std::move(layer));
  }
  const auto window = static_cast<uint32_t>(model.Number("attention.sliding_window"));
  if (context.caches.size() > 1 && window == 0) {
    return Bad("the context has a second cache, but the file no attention.sliding_window");
  }
  if (const uint64_t bytes = SnapshotBytes(context, window); bytes != 0) {
    spec.layers.push_back({.kind = LayerKind::kState, .state_bytes = bytes});
  }
  return spec;
}

}  // namespace prefixd::llama
