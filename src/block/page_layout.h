// The place of each unit in a page: [layer][K heads][V heads], every unit 128-byte aligned. A page
// holds one KV block for one layer group in one format (rung).
//
// Pure functions, thread-safe. All require a validated group of kind kFull or kSliding, rung <
// ladder size and tokens > 0. LayoutOfPage also takes groups of kind kState: their pages have no
// units and are state_bytes long whatever rung and tokens are. A page of t tokens equals, byte for
// byte, what CutPage makes from a longer page.
#pragma once
#include <cstddef>
#include <cstdint>

#include "block/layer_group.h"

namespace prefixd::block {

struct PageLayout {
  uint64_t key_unit_bytes = 0;
  uint64_t value_unit_bytes = 0;  // 0 if no value is stored
  uint64_t layer_bytes = 0;       // kv_heads * (key_unit_bytes + value_unit_bytes)
  uint64_t page_bytes = 0;        // layers * layer_bytes: the bytes stored, moved and checked
  uint64_t payload_bytes = 0;     // without padding, by the formula of formats.md
};
PageLayout LayoutOfPage(const LayerGroup& group, uint32_t rung, uint32_t tokens);

// `layer` is the index inside the group.
uint64_t KeyUnitOffset(const LayerGroup& group, const PageLayout& layout, uint32_t layer,
                       uint32_t head);
uint64_t ValueUnitOffset(const LayerGroup& group, const PageLayout& layout, uint32_t layer,
                         uint32_t head);

// Copies `count` tokens from slots [from.begin, ...) of a page of from.page_tokens slots to slots
// [to.begin, ...) of a page of to.page_tokens slots, without re-encoding them. Leaves other bytes
// untouched: the caller zeroes a fresh page.
struct PageTokens {
  uint32_t page_tokens = 0;
  uint32_t begin = 0;
};
void CopyPageTokens(const LayerGroup& group, uint32_t rung, const std::byte* from_page,
                    PageTokens from, std::byte* to_page, PageTokens to, uint32_t count);

// Writes to `to` the page that the first `tokens` tokens alone would make. `to` is
// LayoutOfPage(tokens).page_bytes long.
void CutPage(const LayerGroup& group, uint32_t rung, const std::byte* page, uint32_t page_tokens,
             uint32_t tokens, std::byte* to);

}  // namespace prefixd::block
