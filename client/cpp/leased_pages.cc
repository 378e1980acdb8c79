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
  PREFIXD_RETURN_IF_ERROR(leased->CheckLengths(*pages));
  base::MutexLock lock(leased->mutex_);
  leased->Take(pages);
  return leased;
}

absl::Status LeasedPages::CheckLengths(const Columns& pages) const {
  const uint32_t blocks = (plan_.tokens + plan_.block_tokens - 1) / plan_.block_tokens;
  std::vector<bool> seen(columns_.size(), false);
  for (const v1::GroupPages& column : pages) {
    const auto length = static_cast<uint64_t>(column.rung_size());
    const bool known = column.group() < seen.size();
    const uint32_t expected = known && space_->IsState(column.group()) ? 1 : blocks;
    if (!known || seen[column.group()] || length != expected ||
        column.page_tokens_size() != column.rung_size() ||
        (column.offset_size() != 0 && column.offset_size() != column.rung_size())) {
      return absl::InternalError(absl::StrCat("begin: the daemon leased ", length,
                                              " pages of group ", column.group(), ", ", blocks,
                                              " blocks expected"));
    }
    seen[column.group()] = true;
  }
  if (std::find(seen.begin(), seen.end(), false) == seen.end()) return absl::OkStatus();
  return absl::InternalError("begin: the daemon leased nothing of a group");
}

void LeasedPages::Take(Columns* pages) {
  for (v1::GroupPages& from : *pages) {
    Column& column = columns_[from.group()];
    column.rung.Swap(from.mutable_rung());
    column.page_tokens.Swap(from.mutable_page_tokens());
    column.offset.Swap(from.mutable_offset());
    column.offset.Resize(column.rung.size(), block::kNoOffset);  // empty column: no offset is known
    if (from.ready()) Close(from.group(), CheckedTokens(from.group()));
  }
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

uint32_t LeasedPages::Wait(uint32_t group, base::Deadline until) {
  until = std::min(until, plan_.deadline);
  base::MutexLock lock(mutex_);
  while (!progress_.done(group)) {
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
