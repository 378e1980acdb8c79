// Seeded random values of what travels: every field set, valid or not, since the wire checks form
// and not meaning.
#pragma once
#include <random>
#include <string>

#include "block/answer.h"
#include "block/space_identity.h"

namespace prefixd::testing {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : random_(seed) {}

  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  uint32_t Number() { return static_cast<uint32_t>(random_() >> (random_() % 33 + 31)); }
  uint64_t Wide() { return random_(); }
  bool Coin() { return random_() % 2 == 0; }
  std::string Text() { return std::string(Below(20), static_cast<char>('a' + Below(26))); }
  template <typename Enum>
  Enum OneOf(Enum last) {
    return static_cast<Enum>(1 + Below(static_cast<uint32_t>(last)));
  }
  base::Digest256 Digest() {
    base::Digest256 digest{};
    if (Coin()) {
      for (std::byte& byte : digest) byte = static_cast<std::byte>(random_());
    }
    return digest;
  }

  quant::TensorFormat Format() {
    return {.codec = OneOf(quant::Codec::kNvFp4),
            .dtype = OneOf(quant::Dtype::kBf16),
            .bits = static_cast<uint8_t>(Below(256)),
            .group_size = static_cast<uint16_t>(Below(65536)),
            .rotation = OneOf(quant::Rotation::kHadamard),
            .layout = OneOf(quant::Layout::kTransposed)};
  }
  block::LayerGroup Group() {
    block::LayerGroup group;
    group.name = Text();
    group.kind = OneOf(block::LayerKind::kState);
    for (uint32_t i = Below(5); i > 0; --i) group.layers.push_back(Number());
    group.kv_heads = Number();
    group.key_dim = Number();
    group.value_dim = Number();
    group.value_source = OneOf(block::ValueSource::kKeyPrefix);
    group.value_prefix_dim = Number();
    group.tensor_rank = Number();
    group.pipeline_rank = Number();
    group.window = Number();
    group.sink_tokens = Number();
    group.state_bytes = Wide();
    for (uint32_t i = Below(5); i > 0; --i)
      group.ladder.push_back({.key = Format(), .value = Format()});
    return group;
  }
  // The tenant, which does not travel, is left empty.
  block::SpaceIdentity Identity() {
    block::SpaceIdentity identity;
    identity.model = Text();
    identity.weights_digest = Digest();
    identity.adapter_digest = Digest();
    identity.tokenizer_digest = Digest();
    identity.role = OneOf(block::Role::kDraft);
    identity.target_digest = Digest();
    identity.rope.theta = Number() * 0.5;
    identity.rope.scaling = Text();
    for (uint32_t i = Below(4); i > 0; --i) identity.rope.scaling_params.push_back(Number() * 0.25);
    identity.rope.rotary_dims = Number();
    identity.rope.pairing = OneOf(block::RopePairing::kInterleaved);
    identity.rope.key_after_rope = Coin();
    identity.tensor_parallel = Number() + 1;
    identity.pipeline_parallel = Number() + 1;
    identity.salt = Text();
    identity.block_tokens = Number();
    for (uint32_t i = Below(5); i > 0; --i) identity.groups.push_back(Group());
    for (uint32_t i = Below(3); i > 0; --i) identity.shared_layers.push_back({Number(), Number()});
    return identity;
  }
  block::MatchAnswer Match(uint32_t restorable) {
    block::MatchAnswer match{.matched_tokens = restorable + Below(1000),
                             .restorable_tokens = restorable,
                             .pending_tokens = Number(),
                             .kind = OneOf(block::MatchKind::kNone),
                             .ended_by = OneOf(block::EndReason::kIndexLoading),
                             .diverged_sequences = Number(),
                             .shortened_by = {},
                             .ram_bytes = Wide(),
                             .ssd_bytes = Wide(),
                             .load_us = Wide()};
    for (uint32_t i = Below(4); i > 0; --i) {
      match.shortened_by.push_back({.group = Coin() ? block::kAllGroups : Below(64),
                                    .reason = OneOf(block::ShortenReason::kCommonLength),
                                    .tokens_lost = Number()});
    }
    return match;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace prefixd::testing
