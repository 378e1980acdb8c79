// Copies rows of packed bytes between an engine's tensors and the units of a page.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "block/layer_group.h"
#include "prefixd/client.h"
#include "quant/format.h"

namespace prefixd::client {

// InvalidArgument, in the name of `caller`, unless every part of the format is there for K and, if
// the group stores it, for V.
absl::Status CheckParts(const char* caller, const block::LayerGroup& group, uint32_t rung,
                        const PackedView& key, const PackedView& value);
absl::Status CheckParts(const char* caller, const block::LayerGroup& group, uint32_t rung,
                        const MutablePackedView& key, const MutablePackedView& value);

// Tokens of one layer in one page, and where they are in the engine's tensors.
struct PageRows {
  const block::LayerGroup& group;
  uint32_t rung = 0;
  uint32_t layer = 0;          // index inside the group
  uint32_t page_tokens = 0;    // token slots of the page
  uint32_t first_slot = 0;     // of the first token, in the page
  uint32_t first_row = 0;      // of the first token, in the tensors
  uint32_t tokens = 0;         // to copy
  uint32_t tensor_tokens = 0;  // rows of one head of a dense tensor
};
// Copies codes, scales and biases as they are, in the order of either layout. Requires:
// CheckParts() is OK, the slots are inside the page.
void CopyIntoPage(const PageRows& rows, const PackedView& key, const PackedView& value,
                  std::byte* page);
// kPast: long runs of rows go past the caches; call base::StreamFence() after the last page.
enum class Caches { kThrough, kPast };
void CopyOutOfPage(const PageRows& rows, const std::byte* page, Caches caches,
                   const MutablePackedView& key, const MutablePackedView& value);

}  // namespace prefixd::client
