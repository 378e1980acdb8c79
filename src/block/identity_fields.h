// The one list of a space identity's fields, in encoding order. Encoding, decoding and comparing
// all walk it. Private to this room's sources.
//
// A visitor has Leaf(name, value), Leaf(name, values, max), Struct(name, value, visit), List(name,
// values, max, visit_element) and, for the last field, Tail(...). Tail is a list that was added to
// the format later: an encoding without it has an empty list. The structured bindings make a field
// that is missing here a compile error.
#pragma once
#include <cstdint>

#include "block/space_identity.h"

namespace prefixd::block {

template <typename Visitor, typename T>
void VisitTensorFormat(Visitor& visitor, T& format) {
  auto& [codec, dtype, bits, group_size, rotation, layout] = format;
  visitor.Leaf("codec", codec);
  visitor.Leaf("dtype", dtype);
  visitor.Leaf("bits", bits);
  visitor.Leaf("group_size", group_size);
  visitor.Leaf("scale_dtype", dtype);  // version 1 has it twice
  visitor.Leaf("rotation", rotation);
  visitor.Leaf("layout", layout);
}

template <typename Visitor, typename T>
void VisitKvFormat(Visitor& visitor, T& format) {
  auto& [key, value] = format;
  visitor.Struct("key", key, [&](auto& tensor) { VisitTensorFormat(visitor, tensor); });
  visitor.Struct("value", value, [&](auto& tensor) { VisitTensorFormat(visitor, tensor); });
}

template <typename Visitor, typename T>
void VisitLayerGroup(Visitor& visitor, T& group) {
  auto& [name, kind, layers, kv_heads, key_dim, value_dim, value_source, value_prefix_dim,
         tensor_rank, pipeline_rank, window, sink_tokens, state_bytes, ladder] = group;
  visitor.Leaf("name", name);
  visitor.Leaf("kind", kind);
  visitor.Leaf("layers", layers, kMaxLayers);
  visitor.Leaf("kv_heads", kv_heads);
  visitor.Leaf("key_dim", key_dim);
  visitor.Leaf("value_dim", value_dim);
  visitor.Leaf("value_source", value_source);
  visitor.Leaf("value_prefix_dim", value_prefix_dim);
  visitor.Leaf("tensor_rank", tensor_rank);
  visitor.Leaf("pipeline_rank", pipeline_rank);
  visitor.Leaf("window", window);
  visitor.Leaf("sink_tokens", sink_tokens);
  visitor.Leaf("state_bytes", state_bytes);
  visitor.List("ladder", ladder, kMaxLadder, [&](auto& format) { VisitKvFormat(visitor, format); });
}

template <typename Visitor, typename T>
void VisitRope(Visitor& visitor, T& rope) {
  auto& [theta, scaling, scaling_params, rotary_dims, pairing, key_after_rope] = rope;
  visitor.Leaf("theta", theta);
  visitor.Leaf("scaling", scaling);
  visitor.Leaf("scaling_params", scaling_params, kMaxScalingParams);
  visitor.Leaf("rotary_dims", rotary_dims);
  visitor.Leaf("pairing", pairing);
  visitor.Leaf("key_after_rope", key_after_rope);
}

template <typename Visitor, typename T>
void VisitSpaceIdentity(Visitor& visitor, T& identity) {
  auto& [model, weights_digest, adapter_digest, tokenizer_digest, role, target_digest, rope,
         tensor_parallel, pipeline_parallel, tenant, salt, block_tokens, groups, shared_layers] =
      identity;
  visitor.Leaf("model", model);
  visitor.Leaf("weights_digest", weights_digest);
  visitor.Leaf("adapter_digest", adapter_digest);
  visitor.Leaf("tokenizer_digest", tokenizer_digest);
  visitor.Leaf("role", role);
  visitor.Leaf("target_digest", target_digest);
  visitor.Struct("rope", rope, [&](auto& fields) { VisitRope(visitor, fields); });
  visitor.Leaf("tensor_parallel", tensor_parallel);
  visitor.Leaf("pipeline_parallel", pipeline_parallel);
  visitor.Leaf("tenant", tenant);
  visitor.Leaf("salt", salt);
  visitor.Leaf("block_tokens", block_tokens);
  visitor.List("groups", groups, kMaxGroups, [&](auto& group) { VisitLayerGroup(visitor, group); });
  visitor.Tail("shared_layers", shared_layers, kMaxLayers, [&](auto& shared) {
    auto& [layer, reads] = shared;
    visitor.Leaf("layer", layer);
    visitor.Leaf("reads", reads);
  });
}

}  // namespace prefixd::block
