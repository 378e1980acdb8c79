#include "block/page_layout.h"

#include <cstring>

#include "quant/unit.h"

namespace prefixd::block {
namespace {

// Calls visit(unit without its page_tokens, offset in the `from` page, offset in the `to` page) for
// every unit.
template <typename Visit>
void ForEachUnit(const LayerGroup& group, uint32_t rung, const PageLayout& from,
                 const PageLayout& to, Visit visit) {
  const quant::KvFormat& format = group.ladder[rung];
  const quant::UnitShape key{
      .format = format.key, .side = quant::Side::kKey, .dim = group.key_dim, .page_tokens = 0};
  const quant::UnitShape value{.format = format.value,
                               .side = quant::Side::kValue,
                               .dim = group.value_dim,
                               .page_tokens = 0};
  for (uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (uint32_t head = 0; head < group.kv_heads; ++head) {
      visit(key, KeyUnitOffset(group, from, layer, head), KeyUnitOffset(group, to, layer, head));
    }
    for (uint32_t head = 0; StoresValues(group) && head < group.kv_heads; ++head) {
      visit(value, ValueUnitOffset(group, from, layer, head),
            ValueUnitOffset(group, to, layer, head));
    }
  }
}

}  // namespace

PageLayout LayoutOfPage(const LayerGroup& group, uint32_t rung, uint32_t tokens) {
  if (group.kind == LayerKind::kState) {
    return {.page_bytes = group.state_bytes, .payload_bytes = group.state_bytes};
  }
  const quant::KvFormat& format = group.ladder[rung];
  PageLayout layout;
  layout.key_unit_bytes = quant::LayoutOfUnit(format.key, group.key_dim, tokens).unit_bytes;
  if (StoresValues(group)) {
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
  ForEachUnit(group, rung, LayoutOfPage(group, rung, from.page_tokens),
              LayoutOfPage(group, rung, to.page_tokens),
              [&](quant::UnitShape shape, uint64_t from_offset, uint64_t to_offset) {
                quant::UnitShape to_shape = shape;
                shape.page_tokens = from.page_tokens;
                to_shape.page_tokens = to.page_tokens;
                quant::CopyTokens({shape, from_page + from_offset, from.begin},
                                  {to_shape, to_page + to_offset, to.begin}, count);
              });
}

void CutPage(const LayerGroup& group, uint32_t rung, const std::byte* page, uint32_t page_tokens,
             uint32_t tokens, std::byte* to) {
  const PageLayout cut = LayoutOfPage(group, rung, tokens);
  ForEachUnit(group, rung, cut, cut, [&](quant::UnitShape shape, uint64_t offset, uint64_t) {
    shape.page_tokens = tokens;
    const quant::UnitLayout unit = quant::LayoutOf(shape);
    // In layout rows every slot is written below: only the padding after the slots needs zeros.
    const uint64_t written = shape.format.layout == quant::Layout::kRows ? unit.payload_bytes : 0;
    std::memset(to + offset + written, 0, unit.unit_bytes - written);
  });
  CopyPageTokens(group, rung, page, {.page_tokens = page_tokens}, to, {.page_tokens = tokens},
                 tokens);
}

}  // namespace prefixd::block
