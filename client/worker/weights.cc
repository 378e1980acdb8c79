#include "client/worker/weights.h"

#include <algorithm>
#include <cmath>
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

void AddOne(std::vector<float>* norm) {
  for (float& weight : *norm) weight += 1;
}

// Reads tensors by name, and remembers which ones, so that CheckNoneLeft() finds the others.
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

  // Reads the matrices of `names` into one, one below the other. names[i] has rows[i] rows.
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

  // Refuses a tensor that nobody read (a bias, a norm of the queries): it would have changed the
  // result.
  absl::Status CheckNoneLeft() const {
    for (const interop::Tensor& tensor : checkpoint_.tensors()) {
      const bool derived = tensor.name.ends_with(".rotary_emb.inv_freq") ||
                           tensor.name == "lm_head.weight";  // a copy where embeddings are tied
      if (!derived && !used_.contains(tensor.name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights: ", tensor.name, " is not a tensor of such a decoder"));
      }
    }
    return absl::OkStatus();
  }

 private:
  const interop::Checkpoint& checkpoint_;
  std::set<std::string> used_;
};

// Reads the tensors of one layer.
class LayerReader {
 public:
  LayerReader(TensorReader& reader, uint32_t index, const ModelConfig& config)
      : reader_(reader),
        config_(config),
        layer_(absl::StrCat("model.layers.", index, ".")),
        is_delta_(config.layer(index).type == LayerType::kGatedDelta),
        query_width_(config.query_heads * config.head_dim),
        kv_width_(config.kv_heads * config.head_dim) {}

  absl::StatusOr<LayerWeights> Read() {
    LayerWeights weights;
    PREFIXD_RETURN_IF_ERROR(ReadNorms(&weights));
    PREFIXD_RETURN_IF_ERROR(is_delta_ ? ReadDelta(&weights.delta) : ReadAttention(&weights));
    const uint32_t hidden = config_.hidden_size, inner = config_.intermediate_size;
    PREFIXD_ASSIGN_OR_RETURN(weights.gate_up, reader_.ReadStacked({layer_ + "mlp.gate_proj.weight",
                                                                   layer_ + "mlp.up_proj.weight"},
                                                                  {inner, inner}, hidden));
    PREFIXD_ASSIGN_OR_RETURN(
        weights.down, reader_.ReadStacked({layer_ + "mlp.down_proj.weight"}, {hidden}, inner));
    return weights;
  }

 private:
  absl::Status ReadNorm(const std::string& name, uint32_t size, std::vector<float>* norm) {
    PREFIXD_RETURN_IF_ERROR(reader_.ReadVector(layer_ + name, size, norm));
    if (config_.zero_centered_norms) AddOne(norm);
    return absl::OkStatus();
  }

  absl::Status ReadNorms(LayerWeights* weights) {
    const uint32_t hidden = config_.hidden_size;
    PREFIXD_RETURN_IF_ERROR(ReadNorm("input_layernorm.weight", hidden, &weights->attention_norm));
    if (!config_.block_norms) {
      return ReadNorm("post_attention_layernorm.weight", hidden, &weights->mlp_norm);
    }
    PREFIXD_RETURN_IF_ERROR(
        ReadNorm("post_attention_layernorm.weight", hidden, &weights->attention_out_norm));
    PREFIXD_RETURN_IF_ERROR(
        ReadNorm("pre_feedforward_layernorm.weight", hidden, &weights->mlp_norm));
    return ReadNorm("post_feedforward_layernorm.weight", hidden, &weights->mlp_out_norm);
  }

  absl::Status ReadAttention(LayerWeights* weights) {
    const std::string attention = layer_ + "self_attn.";
    const uint32_t hidden = config_.hidden_size;
    const uint32_t query_rows = (config_.gated_attention ? 2 : 1) * query_width_;
    PREFIXD_ASSIGN_OR_RETURN(
        weights->qkv, reader_.ReadStacked({attention + "q_proj.weight", attention + "k_proj.weight",
                                           attention + "v_proj.weight"},
                                          {query_rows, kv_width_, kv_width_}, hidden));
    if (config_.gated_attention) weights->qkv = GatesBehind(*weights->qkv);
    PREFIXD_ASSIGN_OR_RETURN(
        weights->attention_out,
        reader_.ReadStacked({attention + "o_proj.weight"}, {hidden}, query_width_));
    if (config_.attention_bias) PREFIXD_RETURN_IF_ERROR(ReadBias(attention, &weights->qkv_bias));
    if (!config_.head_norms) return absl::OkStatus();
    PREFIXD_RETURN_IF_ERROR(
        ReadNorm("self_attn.q_norm.weight", config_.head_dim, &weights->query_norm));
    return ReadNorm("self_attn.k_norm.weight", config_.head_dim, &weights->key_norm);
  }

  absl::Status ReadBias(const std::string& attention, std::vector<float>* bias) {
    bias->resize(query_width_ + 2 * size_t{kv_width_});
    float* at = bias->data();
    PREFIXD_RETURN_IF_ERROR(reader_.Read(attention + "q_proj.bias", {query_width_}, at));
    PREFIXD_RETURN_IF_ERROR(
        reader_.Read(attention + "k_proj.bias", {kv_width_}, at + query_width_));
    return reader_.Read(attention + "v_proj.bias", {kv_width_}, at + query_width_ + kv_width_);
  }

  // Moves all gates behind q, k and v. The checkpoint has each head's gates behind its queries.
  SharedMatrix GatesBehind(const Matrix& mixed) const {
    auto sorted = std::make_shared<Matrix>(mixed.rows, mixed.cols);
    const uint32_t dim = config_.head_dim, kv_rows = 2 * kv_width_;
    uint32_t to = 0;
    const auto copy = [&](uint32_t from, uint32_t rows) {
      std::copy_n(mixed.row(from), size_t{rows} * mixed.cols, sorted->row(to));
      to += rows;
    };
    for (uint32_t head = 0; head < config_.query_heads; ++head) copy(2 * head * dim, dim);
    copy(2 * query_width_, kv_rows);
    for (uint32_t head = 0; head < config_.query_heads; ++head) copy((2 * head + 1) * dim, dim);
    return sorted;
  }

  absl::Status ReadDelta(DeltaWeights* weights) {
    const DeltaShape& shape = config_.delta;
    const std::string delta = layer_ + "linear_attn.";
    const uint32_t hidden = config_.hidden_size;
    PREFIXD_ASSIGN_OR_RETURN(
        const SharedMatrix mixed,
        reader_.ReadStacked({delta + "in_proj_qkvz.weight", delta + "in_proj_ba.weight"},
                            {2 * (shape.keys() + shape.values()), 2 * shape.value_heads}, hidden));
    weights->projections = SortByPart(*mixed);
    weights->convolution.resize(size_t{shape.channels()} * shape.convolution);
    PREFIXD_RETURN_IF_ERROR(reader_.Read(delta + "conv1d.weight",
                                         {shape.channels(), 1, shape.convolution},
                                         weights->convolution.data()));
    PREFIXD_RETURN_IF_ERROR(
        reader_.ReadVector(delta + "A_log", shape.value_heads, &weights->forget_rates));
    for (float& rate : weights->forget_rates) rate = std::exp(rate);
    PREFIXD_RETURN_IF_ERROR(
        reader_.ReadVector(delta + "dt_bias", shape.value_heads, &weights->step_biases));
    PREFIXD_RETURN_IF_ERROR(
        reader_.ReadVector(delta + "norm.weight", shape.value_dim, &weights->norm));
    PREFIXD_ASSIGN_OR_RETURN(
        weights->out, reader_.ReadStacked({delta + "out_proj.weight"}, {hidden}, shape.values()));
    return absl::OkStatus();
  }

  // Sorts the rows by part, as DeltaRow has them. The checkpoint has q, k, v and z of a key head
  // together, then b and a of a key head together.
  SharedMatrix SortByPart(const Matrix& mixed) const {
    const DeltaShape& shape = config_.delta;
    const DeltaRow at(shape);
    auto sorted = std::make_shared<Matrix>(mixed.rows, mixed.cols);
    const uint32_t sharing = shape.value_heads / shape.key_heads;
    uint32_t from = 0;
    const auto copy = [&](size_t to, uint32_t rows) {
      std::copy_n(mixed.row(from), size_t{rows} * mixed.cols,
                  sorted->row(static_cast<uint32_t>(to)));
      from += rows;
    };
    const uint32_t values = sharing * shape.value_dim;
    for (size_t head = 0; head < shape.key_heads; ++head) {
      copy(head * shape.key_dim, shape.key_dim);
      copy(shape.keys() + head * shape.key_dim, shape.key_dim);
      copy(2 * shape.keys() + head * values, values);
      copy(at.z + head * values, values);
    }
    for (size_t head = 0; head < shape.key_heads; ++head) {
      copy(at.b + head * sharing, sharing);
      copy(at.a + head * sharing, sharing);
    }
    return sorted;
  }

  TensorReader& reader_;
  const ModelConfig& config_;
  const std::string layer_;
  const bool is_delta_;
  const uint32_t query_width_, kv_width_;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const std::string& dir, const ModelConfig& config) {
  PREFIXD_ASSIGN_OR_RETURN(const interop::Checkpoint checkpoint, interop::Checkpoint::Open(dir));
  TensorReader reader(checkpoint);
  Weights weights;
  PREFIXD_ASSIGN_OR_RETURN(
      const SharedMatrix embeddings,
      reader.ReadStacked({"model.embed_tokens.weight"}, {config.vocab_size}, config.hidden_size));
  weights.embed = [embeddings, scale = config.embedding_scale](uint32_t token,
                                                               std::span<float> row) {
    const float* from = embeddings->row(token);
    for (size_t i = 0; i < row.size(); ++i) row[i] = from[i] * scale;
  };
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    PREFIXD_ASSIGN_OR_RETURN(LayerWeights read, LayerReader(reader, layer, config).Read());
    weights.layers.push_back(std::move(read));
  }
  PREFIXD_RETURN_IF_ERROR(
      reader.ReadVector("model.norm.weight", config.hidden_size, &weights.final_norm));
  if (config.zero_centered_norms) AddOne(&weights.final_norm);
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
