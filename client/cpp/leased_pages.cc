#include "leased_pages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/answer.h"
#include "block/arena_file.h"
#include "block/page_layout.h"

namespace prefixd::client {

std::optional<CachedPage> PageInArena(const Attachment& attachment, const block::LayerGroup& group,
                                      const ArenaPlace& place) {
  if (attachment.arena() == nullptr || place.rung >= group.ladder.size() ||
      place.page_tokens == 0 || place.page_tokens > block::kMaxRecordTokens) {
    return std::nullopt;
  }
  const uint64_t bytes = block::LayoutOfPage(group, place.rung, place.page_tokens).page_bytes;
  const uint64_t arena_bytes = attachment.arena()->data_bytes();
  if (bytes > arena_bytes || place.offset > arena_bytes - bytes ||
      place.offset % quant::kUnitAlignment != 0) {
    return std::nullopt;
  }
  return CachedPage{.bytes = attachment.arena()->data() + place.offset,
                    .arena_offset = place.offset,
                    .page_tokens = place.page_tokens,
                    .rung = place.rung};
}

LeasedPages::LeasedPages(std::shared_ptr<Attachment> attachment,
                         std::shared_ptr<const SpaceState> space, const LoadPlan& plan)
    : attachment_(std::move(attachment)),
      space_(std::move(space)),
      plan_(plan),
      columns_(space_->groups().size()),
      progress_(columns_.size(), plan.tokens, !space_->regular()) {}

absl::StatusOr<std::shared_ptr<LeasedPages>> LeasedPages::Make(
    std::shared_ptr<Attachment> attachment, std::shared_ptr<const SpaceState> space,
    const LoadPlan& plan, Columns* pages) {
  std::shared_ptr<LeasedPages> leased(
      new LeasedPages(std::move(attachment), std::move(space), plan));
  PREFIXD_RETURN_IF_ERROR(leased->CheckLengths(plan, 0, *pages));
  base::MutexLock lock(leased->mutex_);
  leased->Take(0, pages);
  return leased;
}

absl::Status LeasedPages::CheckLengths(const LoadPlan& plan, uint32_t first_block,
                                       const Columns& pages) const {
  const uint32_t blocks = (plan.tokens + plan.block_tokens - 1) / plan.block_tokens;
  std::vector<bool> seen(columns_.size(), false);
  for (const v1::GroupPages& column : pages) {
    const auto length = static_cast<uint64_t>(column.rung_size());
    const bool known = column.group() < seen.size();
    const uint32_t expected = known && space_->IsState(column.group()) ? 1 : blocks - first_block;
    if (!known || seen[column.group()] || first_block > blocks || length != expected ||
        column.page_tokens_size() != column.rung_size() ||
        (column.offset_size() != 0 && column.offset_size() != column.rung_size())) {
      return absl::InternalError(absl::StrCat("begin: the daemon leased ", length,
                                              " pages of group ", column.group(), ", blocks ",
                                              first_block, " to ", blocks, " expected"));
    }
    seen[column.group()] = true;
  }
  if (std::find(seen.begin(), seen.end(), false) == seen.end()) return absl::OkStatus();
  return absl::InternalError("begin: the daemon leased nothing of a group");
}

void LeasedPages::Take(uint32_t first_block, Columns* pages) {
  const auto append = [&](auto* column, auto* more, bool anew) {
    if (anew) return column->Swap(more);
    column->Truncate(static_cast<int>(first_block));
    column->MergeFrom(*more);
  };
  for (v1::GroupPages& from : *pages) {
    Column& column = columns_[from.group()];
    const bool anew = first_block == 0 || space_->IsState(from.group());
    append(&column.rung, from.mutable_rung(), anew);
    append(&column.page_tokens, from.mutable_page_tokens(), anew);
    append(&column.offset, from.mutable_offset(), anew);
    column.offset.Resize(column.rung.size(), block::kNoOffset);  // empty column: no offset is known
    if (from.ready()) Close(from.group(), CheckedTokens(from.group()));
  }
}

absl::Status LeasedPages::Extend(const LoadPlan& plan, uint32_t first_block, Columns* pages) {
  if (pages->empty() && plan.tokens == plan_.tokens) return absl::OkStatus();  // nothing new
  const uint32_t held = (plan_.tokens + plan_.block_tokens - 1) / plan_.block_tokens;
  if (first_block > held) {
    return absl::InternalError("extend: the daemon left out blocks");
  }
  PREFIXD_RETURN_IF_ERROR(CheckLengths(plan, first_block, *pages));
  plan_ = plan;
  base::MutexLock lock(mutex_);
  progress_.Extend(plan.tokens);
  Take(first_block, pages);
  return absl::OkStatus();
}

uint32_t LeasedPages::CheckedTokens(uint32_t group) const {
  const block::LayerGroup& layers = space_->groups()[group];
  const Column& column = columns_[group];
  const uint64_t arena_bytes = attachment_->arena()->data_bytes();
  if (space_->IsState(group)) {
    const bool fits = layers.state_bytes <= arena_bytes &&
                      column.offset[0] <= arena_bytes - layers.state_bytes &&
                      column.offset[0] % quant::kUnitAlignment == 0;
    return fits ? plan_.tokens : 0;
  }
  uint32_t rung = ~uint32_t{0}, page_tokens = 0;
  uint64_t page_bytes = 0;  // of a page with these two; computed once for all that are alike
  uint32_t tokens = 0;
  for (int b = 0; b < column.offset.size(); ++b) {
    const uint32_t wanted = std::min(plan_.block_tokens, plan_.tokens - tokens);
    if (column.rung[b] == block::kNoLimit) {  // no page
      if (space_->Reads(group, plan_.tokens, tokens, tokens + wanted)) break;
      tokens += wanted;
      continue;
    }
    if (column.rung[b] != rung || column.page_tokens[b] != page_tokens) {
      rung = column.rung[b];
      page_tokens = column.page_tokens[b];
      if (rung >= layers.ladder.size() || page_tokens > plan_.block_tokens) break;
      page_bytes = page_tokens ? block::LayoutOfPage(layers, rung, page_tokens).page_bytes : 0;
    }
    const uint64_t offset = column.offset[b];
    if (page_tokens < wanted || page_bytes > arena_bytes || offset > arena_bytes - page_bytes ||
        offset % quant::kUnitAlignment != 0) {
      break;
    }
    tokens += wanted;
  }
  return tokens;
}

void LeasedPages::Close(uint32_t group, uint32_t usable_tokens) {
  progress_.Close(group, usable_tokens, plan_.asked);
  changed_.NotifyAll();
}

void LeasedPages::OnReady(const v1::LeaseReady& ready) {
  base::MutexLock lock(mutex_);
  const uint32_t group = ready.group();
  if (group >= columns_.size() || progress_.done(group)) return;
  Column& column = columns_[group];
  for (int i = 0; i < std::min(ready.first_token_size(), ready.offset_size()); ++i) {
    const uint32_t b = space_->IsState(group) ? 0 : ready.first_token(i) / plan_.block_tokens;
    if (b < static_cast<uint32_t>(column.offset.size())) {
      column.offset[static_cast<int>(b)] = ready.offset(i);
    }
  }
  Close(group, CheckedTokens(group));
}

void LeasedPages::OnFailed(const v1::LeaseFailed& failed) {
  base::MutexLock lock(mutex_);
  progress_.Shorten(failed.usable_tokens());
  // The rest of the group is announced like any other, unless nothing is left.
  if (progress_.usable_tokens() == 0) progress_.CloseAll();
  changed_.NotifyAll();
}

uint32_t LeasedPages::Wait(uint32_t group, uint32_t tokens, base::Deadline until) {
  until = std::min(until, plan_.deadline);
  base::MutexLock lock(mutex_);
  while (!progress_.done(group) && tokens > progress_.held_tokens()) {
    if (!changed_.WaitUntil(mutex_, until) && !progress_.done(group)) progress_.CloseAll();
  }
  return progress_.usable_tokens();
}

uint32_t LeasedPages::usable_tokens() const {
  base::MutexLock lock(mutex_);
  return progress_.usable_tokens();
}

CachedPage LeasedPages::page(uint32_t group, uint32_t block) const {
  const Column& column = columns_[group];
  const int b = space_->IsState(group) ? 0 : static_cast<int>(block);
  if (column.rung[b] == block::kNoLimit) return {.page_tokens = plan_.block_tokens};
  return {.bytes = attachment_->arena()->data() + column.offset[b],
          .arena_offset = column.offset[b],
          .page_tokens = column.page_tokens[b],
          .rung = column.rung[b]};
}

void LeasedPages::Cancel() {
  base::MutexLock lock(mutex_);
  progress_.CloseAll();
  changed_.NotifyAll();
}

std::chrono::microseconds LeasedPages::duration() const {
  base::MutexLock lock(mutex_);
  return progress_.duration();
}

}  // namespace prefixd::client
