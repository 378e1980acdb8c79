#include "block/page_layout.h"

#include <cstring>

#include "quant/codec.h"

namespace prefixd::block {
namespace {

bool StoresValue(const LayerGroup& group) { return group.value_source == ValueSource::kStored; }

// Calls visit(format, dim, offset in the `from` page, offset in the `to` page) for every unit.
template <typename Visit>
void ForEachUnit(const LayerGroup& group, uint32_t rung, const PageLayout& from,
                 const PageLayout& to, Visit visit) {
  const quant::KvFormat& format = group.ladder[rung];
  for (uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (uint32_t head = 0; head < group.kv_heads; ++head) {
      visit(format.key, group.key_dim, KeyUnitOffset(group, from, layer, head),
            KeyUnitOffset(group, to, layer, head));
    }
    for (uint32_t head = 0; StoresValue(group) && head < group.kv_heads; ++head) {
      visit(format.value, group.value_dim, ValueUnitOffset(group, from, layer, head),
            ValueUnitOffset(group, to, layer, head));
    }
  }
}

}  // namespace

PageLayout LayoutOfPage(const LayerGroup& group, uint32_t rung, uint32_t tokens) {
  const quant::KvFormat& format = group.ladder[rung];
  PageLayout layout;
  layout.key_unit_bytes = quant::LayoutOfUnit(format.key, group.key_dim, tokens).unit_bytes;
  if (StoresValue(group)) {
    layout.value_unit_bytes = quant::LayoutOfUnit(format.value, group.value_dim, tokens).unit_bytes;
  }
  layout.layer_bytes = group.kv_heads * (layout.key_unit_bytes + layout.value_unit_bytes);
  layout.page_bytes = group.layers.size() * layout.layer_bytes;
  layout.payload_bytes = group.layers.size() * tokens * TokenBytesPerLayer(group, rung);
  return layout;
}

uint64_t KeyUnitOffset(const LayerGroup&, const PageLayout& layout, uint32_t layer, uint32_t head) {
  return layer * layout.layer_bytes + head * layout.key_unit_bytes;
}

uint64_t ValueUnitOffset(const LayerGroup& group, const PageLayout& layout, uint32_t layer,
                         uint32_t head) {
  return layer * layout.layer_bytes + group.kv_heads * layout.key_unit_bytes +
         head * layout.value_unit_bytes;
}

void CopyPageTokens(const LayerGroup& group, uint32_t rung, const std::byte* from_page,
                    PageTokens from, std::byte* to_page, PageTokens to, uint32_t count) {
  if (count == 0) return;
  const quant::TokenRange from_range{.page_tokens = from.page_tokens, .begin = from.begin};
  const quant::TokenRange to_range{.page_tokens = to.page_tokens, .begin = to.begin};
  ForEachUnit(group, rung, LayoutOfPage(group, rung, from.page_tokens),
              LayoutOfPage(group, rung, to.page_tokens),
              [&](const quant::TensorFormat& format, uint32_t dim, uint64_t from_offset,
                  uint64_t to_offset) {
                quant::CopyTokens(format, dim, from_page + from_offset, from_range,
                                  to_page + to_offset, to_range, count);
              });
}

void CutPage(const LayerGroup& group, uint32_t rung, const std::byte* page, uint32_t page_tokens,
             uint32_t tokens, std::byte* to) {
  const PageLayout cut = LayoutOfPage(group, rung, tokens);
  // Every token slot of a unit is written below: only the padding behind them needs zeros.
  ForEachUnit(group, rung, cut, cut,
              [&](const quant::TensorFormat& format, uint32_t dim, uint64_t offset, uint64_t) {
                const quant::UnitLayout unit = quant::LayoutOfUnit(format, dim, tokens);
                std::memset(to + offset + unit.payload_bytes, 0,
                            unit.unit_bytes - unit.payload_bytes);
              });
  CopyPageTokens(group, rung, page, {.page_tokens = page_tokens}, to, {.page_tokens = tokens},
                 tokens);
}

}  // namespace prefixd::block
