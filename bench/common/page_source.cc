#include "bench/common/page_source.h"

#include <algorithm>
#include <cstring>

#include "bench/common/mix.h"
#include "block/split_layers.h"

namespace prefixd::bench {
namespace {

constexpr size_t kPlaces = size_t{1} << 18;  // words at which a page may begin: 2 MiB

block::SpaceIdentity IdentityOf(const Geometry& geometry) {
  block::SpaceIdentity identity;
  identity.model = geometry.model;
  identity.weights_digest[0] = std::byte{1};
  identity.block_tokens = PageSource::kBlockTokens;
  block::LayerGroup layer;
  layer.kv_heads = geometry.kv_heads;
  layer.key_dim = layer.value_dim = geometry.dim;
  const quant::TensorFormat format = quant::MlxAffineFormat(8, 64, quant::Dtype::kF16);
  layer.ladder = {{.key = format, .value = format}};
  identity.groups = block::SplitLayers(std::vector<block::LayerGroup>(geometry.layers, layer),
                                       PageSource::kBlockTokens);
  return identity;
}

}  // namespace

PageSource::PageSource(const Geometry& geometry) : identity_(IdentityOf(geometry)) {
  for (const block::LayerGroup& group : identity_.groups) {
    page_bytes_.push_back(block::LayoutOfPage(group, 0, kBlockTokens).page_bytes);
    block_bytes_ += page_bytes_.back();
  }
  const uint64_t longest = *std::max_element(page_bytes_.begin(), page_bytes_.end());
  pattern_.resize(kPlaces + longest / sizeof(uint64_t) + 1);
  for (size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = Mix(i);
}

const std::byte* PageSource::page(const Name& name) const {
  const uint64_t place = Mix(Mix(Mix(name.sequence) + name.group) * 3 + name.block) % kPlaces;
  return reinterpret_cast<const std::byte*>(pattern_.data() + place);
}

bool PageSource::Matches(const Name& name, const std::byte* page) const {
  return std::memcmp(this->page(name), page, page_bytes_[name.group]) == 0;
}

}  // namespace prefixd::bench
