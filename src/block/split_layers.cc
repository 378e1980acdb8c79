#include "block/split_layers.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "block/page_layout.h"

namespace prefixd::block {
namespace {

constexpr uint64_t kTargetPageBytes = uint64_t{1} << 20;

// Sorts layers into classes of layers that are equal in everything. Returns the indexes of each
// class, in order of the classes' first layers.
std::vector<std::vector<uint32_t>> EqualLayers(const std::vector<LayerGroup>& layers) {
  std::vector<std::vector<uint32_t>> classes;
  std::map<LayerGroup, size_t> known;
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    const auto [place, is_new] = known.try_emplace(layers[layer], classes.size());
    if (is_new) classes.emplace_back();
    classes[place->second].push_back(layer);
  }
  return classes;
}

uint64_t LayerPageBytes(const LayerGroup& layer, uint32_t block_tokens) {
  if (layer.kind == LayerKind::kState) return layer.state_bytes;
  LayerGroup single = layer;
  single.layers = {0};
  return LayoutOfPage(single, 0, block_tokens).page_bytes;
}

// Cuts a class into as few pieces of at most `target_bytes` as possible, evenly, larger ones first.
std::vector<LayerGroup> CutClass(const LayerGroup& layer, const std::vector<uint32_t>& indexes,
                                 uint64_t layer_bytes, uint64_t target_bytes) {
  const uint64_t per_group =
      std::max<uint64_t>(1, target_bytes / std::max<uint64_t>(1, layer_bytes));
  const size_t pieces = (indexes.size() + per_group - 1) / per_group;
  std::vector<LayerGroup> groups(pieces, layer);
  auto next = indexes.begin();
  for (size_t i = 0; i < pieces; ++i) {
    const size_t count = indexes.size() / pieces + (i < indexes.size() % pieces ? 1 : 0);
    groups[i].layers.assign(next, next + static_cast<std::ptrdiff_t>(count));
    groups[i].state_bytes = layer.state_bytes * count;
    next += static_cast<std::ptrdiff_t>(count);
  }
  return groups;
}

void NameByKind(std::vector<LayerGroup>& groups) {
  uint32_t full = 0, sliding = 0, state = 0;
  for (LayerGroup& group : groups) {
    switch (group.kind) {
      case LayerKind::kFull:
        group.name = absl::StrCat("full.", full++);
        break;
      case LayerKind::kSliding:
        group.name = absl::StrCat("sliding.", sliding++);
        break;
      case LayerKind::kState:
        group.name = absl::StrCat("state.", state++);
        break;
    }
  }
}

}  // namespace

std::vector<LayerGroup> SplitLayers(const std::vector<LayerGroup>& layers, uint32_t block_tokens) {
  const std::vector<std::vector<uint32_t>> classes = EqualLayers(layers);
  std::vector<LayerGroup> groups;
  // A model that needs more than kMaxGroups groups at this page size gets larger pages.
  for (uint64_t target_bytes = kTargetPageBytes;; target_bytes *= 2) {
    groups.clear();
    for (const std::vector<uint32_t>& indexes : classes) {
      const LayerGroup& layer = layers[indexes.front()];
      const uint64_t layer_bytes = LayerPageBytes(layer, block_tokens);
      for (LayerGroup& group : CutClass(layer, indexes, layer_bytes, target_bytes)) {
        groups.push_back(std::move(group));
      }
    }
    const bool one_each = groups.size() == classes.size();
    if (groups.size() <= kMaxGroups || one_each) break;
  }
  std::sort(groups.begin(), groups.end(), [](const LayerGroup& a, const LayerGroup& b) {
    return a.layers.front() < b.layers.front();
  });
  NameByKind(groups);
  return groups;
}

}  // namespace prefixd::block
