#include "plan_pages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"
#include "element_rows.h"
#include "format_index.h"
#include "packed_rows.h"

namespace prefixd::client {

PlanPages::PlanPages(std::shared_ptr<const SpaceState> space, const Options& options)
    : space_(std::move(space)), options_(options), states_(space_) {}

void PlanPages::Ask(uint32_t block, uint32_t tokens, uint32_t format) {
  blocks_[block] = {.tokens = tokens,
                    .format = format,
                    .pages = std::vector<PageMemory>(space_->groups().size()),
                    .written = std::vector<uint32_t>(space_->layers().size(), 0)};
}

uint64_t PlanPages::block_bytes() const {
  uint64_t bytes = 0;
  for (const block::LayerGroup& group : space_->groups()) {
    if (group.kind == block::LayerKind::kState) continue;
    const uint32_t rung = RungOf(group, options_.format);
    bytes += block::LayoutOfPage(group, rung, options_.block_tokens).page_bytes;
  }
  return bytes;
}

absl::Status PlanPages::EnsurePage(uint32_t group, uint32_t rung, PageMemory* page) const {
  if (*page) return absl::OkStatus();
  const uint64_t bytes =
      block::LayoutOfPage(space_->groups()[group], rung, options_.block_tokens).page_bytes;
  *page = AllocatePage(staging_.get(), bytes);
  if (!*page) return absl::ResourceExhaustedError("plan: no memory for a page");
  std::memset(page->get(), 0, bytes);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> PlanPages::RungOfBlocks(const block::LayerGroup& group, uint32_t begin,
                                                 uint32_t end) const {
  const auto first = blocks_.lower_bound(begin / options_.block_tokens);
  if (first == blocks_.end() || first->first * options_.block_tokens >= end)
    return RungOf(group, options_.format);
  const uint32_t rung = RungOf(group, first->second.format);
  for (auto it = first; it != blocks_.end() && it->first * options_.block_tokens < end; ++it) {
    if (RungOf(group, it->second.format) == rung) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("write_packed: block ", first->first, " is wanted in format ",
                     first->second.format, ", block ", it->first, " in ", it->second.format));
  }
  return rung;
}

absl::Status PlanPages::CheckLayer(const char* caller, uint32_t layer) const {
  const uint32_t group = space_->layers()[layer].group;
  if (space_->IsState(group)) {
    return absl::InvalidArgumentError(absl::StrCat(
        caller, ": layer ", layer, " keeps a state and no tokens, PutState() takes it"));
  }
  PREFIXD_RETURN_IF_ERROR(space_->CheckOwns(caller, layer));
  if (options_.format < space_->formats()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(caller, ": write_format is ", options_.format,
                                                 ", the layers have ", space_->formats()));
}

template <typename Visit>
absl::Status PlanPages::ForEachAsked(const char* caller, uint32_t layer, uint32_t begin,
                                     uint32_t count, Visit visit) {
  const LayerPlace place = space_->layers()[layer];
  const block::LayerGroup& group = space_->groups()[place.group];
  const uint32_t block_tokens = options_.block_tokens, end = begin + count;
  for (uint32_t at = begin; at < end;) {
    const uint32_t first = at / block_tokens * block_tokens, slot = at - first;
    const uint32_t run = std::min(end - at, block_tokens - slot);
    if (const auto found = blocks_.find(at / block_tokens); found != blocks_.end()) {
      Block& block = found->second;
      uint32_t& written = block.written[layer];
      if (slot > written) {
        return absl::InvalidArgumentError(absl::StrCat(caller, ": begin is ", at, " in layer ",
                                                       layer, ", the block at token ", first,
                                                       " is written up to ", first + written));
      }
      const uint32_t rung = RungOf(group, block.format);
      PREFIXD_RETURN_IF_ERROR(EnsurePage(place.group, rung, &block.pages[place.group]));
      visit(PageRows{.group = group,
                     .rung = rung,
                     .layer = place.index,
                     .page_tokens = block_tokens,
                     .first_slot = slot,
                     .first_row = at - begin,
                     .tokens = run,
                     .tensor_tokens = count},
            block.pages[place.group].get());
      written = std::max(written, slot + run);
    }
    at += run;
  }
  return absl::OkStatus();
}

absl::Status PlanPages::Write(uint32_t layer, uint32_t begin, uint32_t count, const PackedView& key,
                              const PackedView& value) {
  PREFIXD_RETURN_IF_ERROR(CheckLayer("write_packed", layer));
  const block::LayerGroup& group = space_->groups()[space_->layers()[layer].group];
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t rung, RungOfBlocks(group, begin, begin + count));
  PREFIXD_RETURN_IF_ERROR(CheckParts("write_packed", group, rung, key, value));
  return ForEachAsked(
      "write_packed", layer, begin, count,
      [&](const PageRows& rows, std::byte* page) { CopyIntoPage(rows, key, value, page); });
}

absl::Status PlanPages::WriteRows(uint32_t layer, uint32_t begin, uint32_t count,
                                  const TensorView& key, const TensorView& value) {
  PREFIXD_RETURN_IF_ERROR(CheckLayer("write_rows", layer));
  const block::LayerGroup& group = space_->groups()[space_->layers()[layer].group];
  PREFIXD_RETURN_IF_ERROR(CheckTensors("write_rows", group, key, value));
  return ForEachAsked(
      "write_rows", layer, begin, count,
      [&](const PageRows& rows, std::byte* page) { QuantizeIntoPage(rows, key, value, page); });
}

absl::Status PlanPages::CheckWritten(uint32_t tokens) const {
  for (const auto& [index, block] : blocks_) {
    const uint32_t first = index * options_.block_tokens;
    if (first >= tokens) break;
    for (uint32_t layer = 0; layer < block.written.size(); ++layer) {
      // A sliding layer may leave out whole blocks; a state layer has nothing to write.
      const uint32_t group = space_->layers()[layer].group;
      if (space_->IsState(group) || space_->owner(layer) != layer) continue;
      if (space_->kinds()[group] == block::LayerKind::kSliding && !block.pages[group]) continue;
      if (block.written[layer] >= block.tokens) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("commit: the block at token ", first, " has ", block.tokens, " tokens, ",
                       block.written[layer], " of them are written in layer ", layer));
    }
  }
  return absl::OkStatus();
}

void PlanPages::Drop(uint32_t tokens) {
  states_.Drop(tokens);
  std::erase_if(blocks_, [&](const auto& entry) {
    return entry.first * options_.block_tokens + entry.second.tokens <= tokens;
  });
}

bool PlanPages::IsOwn(uint32_t group, uint32_t block) const {
  const auto found = blocks_.find(block);
  return found != blocks_.end() && found->second.pages[group];
}

OwnPages::Page PlanPages::own_page(uint32_t group, uint32_t block) const {
  if (!IsOwn(group, block)) return {};
  const Block& asked = blocks_.at(block);
  return {.memory = asked.pages[group], .rung = RungOf(space_->groups()[group], asked.format)};
}

uint64_t PlanPages::rungs_used(uint32_t group) const {
  return RungsOf(space_->groups()[group],
                 options_.readable | options_.coarser | MaskOf(options_.format));
}

}  // namespace prefixd::client
