#include "cache/room/page_records.h"

#include <optional>

namespace prefixd::cache {

void PageRecords::Write(const index::PageInfo& page, block::Extent extent) {
  if (!context_->arena->shared()) return;
  const std::optional<index::BlockDescription> block = context_->index->Describe(page.ref);
  const SpacePtr space = block.has_value() ? spaces_->Find(page.name.space) : nullptr;
  if (space == nullptr) return;
  context_->arena->Publish(extent, {.name = page.name,
                                    .space = space->ordinal,
                                    .parent = block->name.parent,
                                    .serial = block->serials.own,
                                    .parent_serial = block->serials.parent,
                                    .first_token = block->first_token,
                                    .page_bytes = page.page_bytes,
                                    .payload_bytes = page.payload_bytes,
                                    .check = page.check,
                                    .tokens = {block->tokens, block->content},
                                    .ends = block->ends,
                                    .last_use = context_->options.clock->UnixMicros()});
}

}  // namespace prefixd::cache
