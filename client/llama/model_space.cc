#include "client/llama/model_space.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"

namespace prefixd::llama {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("llama.cpp: ", parts...));
}

TensorFormat FormatOf(const quant::TensorFormat& format, uint32_t rotation, bool transposed) {
  return {.codec = static_cast<Codec>(format.codec),
          .dtype = static_cast<Dtype>(format.dtype),
          .bits = format.bits,
          .group_size = format.group_size,
          .rotation = rotation == 0 ? Rotation::kNone : Rotation::kHadamard,
          .layout = transposed ? Layout::kTransposed : Layout::kRows};
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
  std::vector<uint64_t> Numbers(const std::string& key, size_t count) const {
    return gguf_.Numbers(Key(key), count);
  }
  bool Has(const std::string& key) const { return gguf_.Has(Key(key)); }

 private:
  const interop::Gguf& gguf_;
  const std::string name_;
};

RopeSpec RopeOf(const Model& model, uint32_t key_dim) {
  RopeSpec rope;
  rope.theta = model.Real("rope.freq_base", 10000);
  rope.rotary_dim = static_cast<uint32_t>(model.Number("rope.dimension_count", key_dim));
  rope.scaling = model.Text("rope.scaling.type");
  for (const char* const key : {"rope.scaling.factor", "rope.scaling.original_context_length",
                                "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier"}) {
    if (model.Has(key)) rope.scaling_params.push_back(model.Real(key, 0));
  }
  return rope;
}

Digest DigestOf(const Digest& file, const interop::LlamaContext& context,
                const std::string& adapters) {
  base::ByteWriter out;
  out.Framed("prefixd/1/llama.cpp");
  out.Raw(file);
  out.Fixed(context.key_rotation);
  out.Fixed(context.value_rotation);
  out.Framed(adapters);
  return base::Sha256(base::AsBytes(out.bytes()));
}

// Returns why rows of `tensor` are not `heads` rows of `dim` elements, or "".
absl::Status CheckRows(const char* what, size_t layer, const interop::LlamaTensor& tensor,
                       uint32_t heads, uint32_t dim) {
  const absl::Status fits = quant::Validate(tensor.format, dim);
  if (!fits.ok()) return Bad("layer ", layer, ", ", what, ": ", fits.message());
  const uint64_t expected = uint64_t{heads} * quant::BytesOfRow(tensor.format, dim).codes;
  if (expected == tensor.token_bytes) return absl::OkStatus();
  return Bad("layer ", layer, ", ", what, ": a token has ", tensor.token_bytes,
             " bytes, by the file ", heads, " heads of ", dim, " elements, ", expected, " bytes");
}

}  // namespace

absl::StatusOr<SpaceSpec> SpaceOf(const interop::Gguf& gguf, const Digest& file_digest,
                                  const interop::LlamaContext& context, const std::string& adapters,
                                  const std::string& salt) {
  const Model model(gguf);
  const size_t layers = context.keys.size();
  if (model.name().empty()) return Bad("the file names no architecture");
  if (model.Number("attention.sliding_window") != 0) {
    return Bad(model.name(), " has sliding layers, which are not supported yet");
  }
  const std::vector<uint64_t> heads = model.Numbers("attention.head_count", layers);
  std::vector<uint64_t> kv_heads = model.Numbers("attention.head_count_kv", layers);
  if (kv_heads.empty()) kv_heads = heads;
  if (kv_heads.empty() || heads.empty() || heads[0] == 0) {
    return Bad("the file has no head counts for ", layers, " layers");
  }
  const uint64_t head_dim = model.Number("embedding_length") / heads[0];
  const auto key_dim = static_cast<uint32_t>(model.Number("attention.key_length", head_dim));
  const auto value_dim = static_cast<uint32_t>(model.Number("attention.value_length", head_dim));
  SpaceSpec spec{.model = gguf.Text("general.name", model.name()),
                 .weights_digest = DigestOf(file_digest, context, adapters),
                 .tokenizer_digest = file_digest,
                 .rope = RopeOf(model, key_dim),
                 .salt = salt};
  for (size_t i = 0; i < layers; ++i) {
    const auto of_layer = static_cast<uint32_t>(kv_heads[i]);
    PREFIXD_RETURN_IF_ERROR(CheckRows("keys", i, context.keys[i], of_layer, key_dim));
    PREFIXD_RETURN_IF_ERROR(CheckRows("values", i, context.values[i], of_layer, value_dim));
    spec.layers.push_back(
        {.kv_heads = of_layer,
         .key_dim = key_dim,
         .value_dim = value_dim,
         .formats = {{.key = FormatOf(context.keys[i].format, context.key_rotation, false),
                      .value = FormatOf(context.values[i].format, context.value_rotation,
                                        context.values_transposed)}}});
  }
  return spec;
}

}  // namespace prefixd::llama
