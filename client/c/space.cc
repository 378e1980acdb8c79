// Formats and spaces of prefixd.h.
#include "handles.h"

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

void TakeDigest(const uint8_t* from, prefixd::Digest* to) {
  if (from != nullptr) std::memcpy(to->data(), from, to->size());
}

bool TakeRope(const prefixd_rope* from, prefixd::RopeSpec* to) {
  prefixd_rope rope;
  if (!Take(from, &rope)) return false;
  to->theta = rope.theta;
  to->scaling = Text(rope.scaling);
  if (rope.scaling_params != nullptr) {
    to->scaling_params.assign(rope.scaling_params, rope.scaling_params + rope.scaling_param_count);
  }
  to->rotary_dim = rope.rotary_dim;
  to->interleaved = rope.interleaved != 0;
  to->key_before_rope = rope.key_before_rope != 0;
  return true;
}

bool TakeLayers(const prefixd_layer* first, uint32_t count, std::vector<prefixd::LayerSpec>* to) {
  if (first == nullptr) return true;  // OpenSpace reports that there are none
  for (uint32_t i = 0; i < count; ++i) {
    const prefixd_layer* const from = EntryOf(first, i);
    prefixd_layer layer;
    if (from->size != first->size) return Refuse("prefixd: layers differ in size"), false;
    if (!Take(from, &layer)) return false;
    prefixd::LayerSpec spec{.kv_heads = layer.kv_heads,
                            .key_dim = layer.key_dim,
                            .value_dim = layer.value_dim,
                            .formats = {},
                            .window = layer.window,
                            .sink_tokens = layer.sink_tokens,
                            .state_bytes = layer.state_bytes};
    if (layer.kind > PREFIXD_STATE || layer.values > PREFIXD_VALUES_KEY_PREFIX) {
      return Refuse("open_space: a layer's kind is not known to this library"), false;
    }
    if (layer.shared != 0) spec.reads_layer = LayerOf(layer.reads_layer);
    if (layer.shared != 0 && spec.reads_layer < 0) {
      return Refuse("open_space: reads_layer is not a layer of any space"), false;
    }
    if (layer.kind != 0) spec.kind = static_cast<prefixd::LayerKind>(layer.kind);
    if (layer.values != 0) spec.values = static_cast<prefixd::ValueSource>(layer.values);
    for (uint32_t f = 0; layer.formats != nullptr && f < layer.format_count; ++f) {
      spec.formats.push_back(FormatOf(layer.formats[f]));
    }
    to->push_back(std::move(spec));
  }
  return true;
}

bool TakeSpec(const prefixd_space_spec* from, prefixd::SpaceSpec* to) {
  prefixd_space_spec spec;
  if (from == nullptr) return Refuse("open_space: no spec"), false;
  if (!Take(from, &spec)) return false;
  to->model = Text(spec.model);
  TakeDigest(spec.weights_digest, &to->weights_digest);
  TakeDigest(spec.adapter_digest, &to->adapter_digest);
  TakeDigest(spec.tokenizer_digest, &to->tokenizer_digest);
  TakeDigest(spec.target_digest, &to->target_digest);
  to->draft = spec.draft != 0;
  to->tensor_parallel = std::max(1u, spec.tensor_parallel);
  to->pipeline_parallel = std::max(1u, spec.pipeline_parallel);
  to->tensor_rank = spec.tensor_rank;
  to->pipeline_rank = spec.pipeline_rank;
  to->salt = Text(spec.salt);
  to->block_tokens = spec.block_tokens;
  return TakeRope(spec.rope, &to->rope) && TakeLayers(spec.layers, spec.layer_count, &to->layers);
}

}  // namespace

extern "C" {

prefixd_row prefixd_row_bytes(const prefixd_tensor_format* format, uint32_t dim) {
  return Guarded<prefixd_row>({0, 0, 0}, [&]() -> prefixd_row {
    if (format == nullptr) return {0, 0, 0};
    const prefixd::RowBytes row = prefixd::BytesOfRow(FormatOf(*format), dim);
    return {row.codes, row.scales, row.biases};
  });
}

prefixd_space* prefixd_open_space(prefixd_client* client, const prefixd_space_spec* spec) {
  return Guarded<prefixd_space*>(nullptr, [&]() -> prefixd_space* {
    prefixd::SpaceSpec inner;
    if (client == nullptr) return Refuse("open_space: no client"), nullptr;
    if (!TakeSpec(spec, &inner)) return nullptr;
    auto handle = std::make_unique<prefixd_space>();
    prefixd::Result<prefixd::Space> opened = client->client->OpenSpace(inner);
    if (!opened.ok()) return Tell(opened.status), nullptr;
    handle->client = client->client;
    handle->space = std::move(opened.value());
    handle->layer_count = static_cast<uint32_t>(inner.layers.size());
    return handle.release();
  });
}

void prefixd_close_space(prefixd_space* space) {
  Freeing([&] { delete space; });
}

void prefixd_describe_space(const prefixd_space* space, prefixd_space_facts* out) {
  Guarded([&] {
    prefixd_space_facts facts{};
    if (space != nullptr) {
      facts.block_tokens = space->space.block_tokens();
      facts.layer_count = space->layer_count;
      facts.payload_bytes_per_token = space->space.payload_bytes_per_token();
      const std::string id = space->space.id();
      std::memcpy(facts.id, id.data(), std::min(id.size(), sizeof(facts.id) - 1));
    }
    Give(facts, out);
  });
}

}  // extern "C"
