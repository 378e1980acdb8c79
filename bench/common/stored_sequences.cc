#include "bench/common/stored_sequences.h"

#include <cstring>
#include <random>

#include "bench/common/mix.h"

namespace prefixd::bench {
namespace {

constexpr size_t kPlaces = size_t{1} << 20;  // where a tensor may begin in the pattern

KvFormat Format() { return MlxAffine(8, 64, Dtype::kF16); }

// Whether `tokens` rows of `bytes` bytes are equal in every head, with the heads of `a` further
// apart.
struct Rows {
  const std::byte* data = nullptr;
  size_t head_stride = 0;
};
bool SameRows(const Rows& a, const Rows& b, uint32_t heads, size_t bytes) {
  for (uint32_t head = 0; head < heads; ++head) {
    if (std::memcmp(a.data + head * a.head_stride, b.data + head * b.head_stride, bytes) != 0) {
      return false;
    }
  }
  return true;
}

Rows RowsOf(const void* data, size_t head_stride) {
  return {static_cast<const std::byte*>(data), head_stride};
}

}  // namespace

SpaceSpec SpecOf(const Geometry& geometry) {
  SpaceSpec spec;
  spec.model = geometry.model;
  spec.weights_digest[0] = std::byte{1};
  spec.layers.assign(geometry.layers, {.kv_heads = geometry.kv_heads,
                                       .key_dim = geometry.dim,
                                       .value_dim = geometry.dim,
                                       .formats = {Format()}});
  return spec;
}

std::vector<uint32_t> TokensOf(const SequenceName& name) {
  std::vector<uint32_t> tokens(name.tokens);
  for (uint32_t i = 0; i < name.tokens; ++i) {
    tokens[i] = static_cast<uint32_t>(Mix(name.seed * 1'000'003 + i) >> 40);
  }
  return tokens;
}

SequencePattern::SequencePattern(const Geometry& geometry, uint32_t max_tokens)
    : geometry_(geometry), row_(BytesOfRow(Format().key, geometry.dim)) {
  const size_t tensor =
      size_t{geometry.kv_heads} * max_tokens * (row_.codes + row_.scales + row_.biases);
  std::vector<uint64_t> words((tensor + kPlaces) / sizeof(uint64_t) + 1);
  for (size_t i = 0; i < words.size(); ++i) words[i] = Mix(i);
  pattern_.resize(words.size() * sizeof(uint64_t));
  std::memcpy(pattern_.data(), words.data(), pattern_.size());
}

PackedView SequencePattern::At(const SequenceName& name, uint32_t layer, uint32_t tensor) const {
  const std::byte* at = pattern_.data() + Mix(Mix(name.seed) + layer * 2 + tensor) % kPlaces;
  const size_t rows = size_t{geometry_.kv_heads} * name.tokens;
  return {.codes = at,
          .scales = at + rows * row_.codes,
          .biases = at + rows * (row_.codes + row_.scales),
          .codes_head_stride = size_t{name.tokens} * row_.codes,
          .codes_token_stride = row_.codes,
          .scales_head_stride = size_t{name.tokens} * row_.scales,
          .scales_token_stride = row_.scales};
}

Status SequencePattern::Store(const SequenceName& name, Sequence* sequence) const {
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    Status status = sequence->WritePacked(static_cast<int>(layer), 0, name.tokens,
                                          At(name, layer, 0), At(name, layer, 1));
    if (!status.ok()) return status;
  }
  return sequence->Commit({.sequence_end = true, .deadline = std::chrono::seconds(60)}).status;
}

bool SequencePattern::Matches(const SequenceName& name, uint32_t tokens,
                              const Sequence& sequence) const {
  const size_t rows = size_t{geometry_.kv_heads} * tokens;
  const size_t tensor_bytes = rows * (row_.codes + row_.scales + row_.biases);
  std::vector<std::byte> memory(2 * tensor_bytes);
  MutablePackedView seen[2];
  for (size_t tensor = 0; tensor < 2; ++tensor) {
    std::byte* const at = memory.data() + tensor * tensor_bytes;
    seen[tensor] = {.codes = at,
                    .scales = at + rows * row_.codes,
                    .biases = at + rows * (row_.codes + row_.scales),
                    .codes_head_stride = size_t{tokens} * row_.codes,
                    .codes_token_stride = row_.codes,
                    .scales_head_stride = size_t{tokens} * row_.scales,
                    .scales_token_stride = row_.scales};
  }
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    if (!sequence.Gather(static_cast<int>(layer), 0, tokens, seen[0], seen[1]).ok()) return false;
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      const PackedView wanted = At(name, layer, tensor);
      const MutablePackedView& got = seen[tensor];
      const auto same = [&](const void* a, size_t a_stride, const void* b, size_t b_stride) {
        return SameRows(RowsOf(a, a_stride), RowsOf(b, b_stride), geometry_.kv_heads, a_stride);
      };
      if (!same(got.codes, got.codes_head_stride, wanted.codes, wanted.codes_head_stride) ||
          !same(got.scales, got.scales_head_stride, wanted.scales, wanted.scales_head_stride) ||
          !same(got.biases, got.scales_head_stride, wanted.biases, wanted.scales_head_stride)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace prefixd::bench
