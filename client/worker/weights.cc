#include "client/worker/weights.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/status/status.h"

#include "base/status.h"
#include "interop/safetensors.h"
#include "quant/codec.h"

namespace prefixd::worker {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (uint64_t size : shape) absl::StrAppend(&text, text.size() > 1 ? ", " : "", size);
  return text + "]";
}

// Reads tensors by name and remembers which, so that none is left over unseen.
class TensorReader {
 public:
  explicit TensorReader(const interop::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::Status Read(const std::string& name, const std::vector<uint64_t>& shape, float* out) {
    PREFIXD_ASSIGN_OR_RETURN(const interop::Tensor tensor, checkpoint_.Get(name));
    used_.insert(name);
    if (tensor.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat("weights: ", name, " has shape ",
                                                     ShapeText(tensor.shape),
                                                     ", config.json wants ", ShapeText(shape)));
    }
    quant::Dtype dtype;
    switch (tensor.dtype) {
      case interop::TensorDtype::kF32:
        dtype = quant::Dtype::kF32;
        break;
      case interop::TensorDtype::kF16:
        dtype = quant::Dtype::kF16;
        break;
      case interop::TensorDtype::kBf16:
        dtype = quant::Dtype::kBf16;
        break;
      default:
        return absl::InvalidArgumentError(absl::StrCat("weights: ", name, " is ",
                                                       interop::ToString(tensor.dtype),
                                                       ", this worker reads F32, F16 and BF16"));
    }
    size_t count = 1;
    for (uint64_t size : shape) count *= size;
    quant::WidenToFloat(dtype, tensor.bytes.data(), count, out);
    return absl::OkStatus();
  }

  absl::Status ReadVector(const std::string& name, uint32_t size, std::vector<float>* out) {
    out->resize(size);
    return Read(name, {size}, out->data());
  }

  // The matrices of `names`, which stand under one another; rows[i] belongs to names[i].
  absl::StatusOr<SharedMatrix> ReadStacked(const std::vector<std::string>& names,
                                           const std::vector<uint32_t>& rows, uint32_t cols) {
    uint32_t total = 0;
    for (uint32_t count : rows) total += count;
    auto matrix = std::make_shared<Matrix>(total, cols);
    uint32_t row = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      PREFIXD_RETURN_IF_ERROR(Read(names[i], {rows[i], cols}, matrix->row(row)));
      row += rows[i];
    }
    return matrix;
  }

  // A tensor that nobody read (a bias, a norm of the queries) would have changed the result.
  absl::Status CheckNoneLeft() const {
    for (const interop::Tensor& tensor : checkpoint_.tensors()) {
      const bool derived = tensor.name.ends_with(".rotary_emb.inv_freq") ||
                           tensor.name == "lm_head.weight";  // a copy where embeddings are tied
      if (!derived && !used_.contains(tensor.name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights: ", tensor.name, " is not a tensor of a Llama decoder"));
      }
    }
    return absl::OkStatus();
  }

 private:
  const interop::Checkpoint& checkpoint_;
  std::set<std::string> used_;
};

absl::StatusOr<LayerWeights> ReadLayer(TensorReader& reader, uint32_t index,
                                       const ModelConfig& config) {
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string attention = layer + "self_attn.";
  const uint32_t query_width = config.query_heads * config.head_dim;
  const uint32_t kv_width = config.kv_heads * config.head_dim;
  const uint32_t hidden = config.hidden_size;
  const uint32_t inner = config.intermediate_size;
  LayerWeights weights;
  PREFIXD_RETURN_IF_ERROR(
      reader.ReadVector(layer + "input_layernorm.weight", hidden, &weights.attention_norm));
  PREFIXD_RETURN_IF_ERROR(
      reader.ReadVector(layer + "post_attention_layernorm.weight", hidden, &weights.mlp_norm));
  PREFIXD_ASSIGN_OR_RETURN(
      weights.qkv, reader.ReadStacked({attention + "q_proj.weight", attention + "k_proj.weight",
                                       attention + "v_proj.weight"},
                                      {query_width, kv_width, kv_width}, hidden));
  PREFIXD_ASSIGN_OR_RETURN(weights.attention_out, reader.ReadStacked({attention + "o_proj.weight"},
                                                                     {hidden}, query_width));
  PREFIXD_ASSIGN_OR_RETURN(weights.gate_up, reader.ReadStacked({layer + "mlp.gate_proj.weight",
                                                                layer + "mlp.up_proj.weight"},
                                                               {inner, inner}, hidden));
  PREFIXD_ASSIGN_OR_RETURN(weights.down,
                           reader.ReadStacked({layer + "mlp.down_proj.weight"}, {hidden}, inner));
  return weights;
}

}  // namespace

absl::StatusOr<Weights> LoadWeights(const std::string& dir, const ModelConfig& config) {
  PREFIXD_ASSIGN_OR_RETURN(const interop::Checkpoint checkpoint, interop::Checkpoint::Open(dir));
  TensorReader reader(checkpoint);
  Weights weights;
  PREFIXD_ASSIGN_OR_RETURN(
      const SharedMatrix embeddings,
      reader.ReadStacked({"model.embed_tokens.weight"}, {config.vocab_size}, config.hidden_size));
  weights.embed = [embeddings](uint32_t token, std::span<float> row) {
    std::copy_n(embeddings->row(token), row.size(), row.data());
  };
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    PREFIXD_ASSIGN_OR_RETURN(LayerWeights read, ReadLayer(reader, layer, config));
    weights.layers.push_back(std::move(read));
  }
  PREFIXD_RETURN_IF_ERROR(
      reader.ReadVector("model.norm.weight", config.hidden_size, &weights.final_norm));
  weights.head.rows = embeddings;
  if (!config.tied_embeddings) {
    PREFIXD_ASSIGN_OR_RETURN(
        weights.head.rows,
        reader.ReadStacked({"lm_head.weight"}, {config.vocab_size}, config.hidden_size));
  }
  PREFIXD_RETURN_IF_ERROR(reader.CheckNoneLeft());
  return weights;
}

}  // namespace prefixd::worker
