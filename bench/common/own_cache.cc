#include "bench/common/own_cache.h"

#include "base/checksum.h"
#include "base/status.h"
#include "block/page_layout.h"

namespace prefixd::bench {

absl::StatusOr<std::unique_ptr<OwnCache>> OwnCache::Open(const cache::Options& options,
                                                         const block::SpaceIdentity& identity) {
  std::unique_ptr<OwnCache> own(new OwnCache(identity));
  PREFIXD_ASSIGN_OR_RETURN(own->cache_, cache::Cache::Open(options));
  own->session_ = own->cache_->BeginSession("bench");
  PREFIXD_ASSIGN_OR_RETURN(const cache::OpenedSpace opened,
                           own->cache_->OpenSpace(own->session_, identity));
  own->space_ = opened.space;
  return own;
}

OwnCache::OwnCache(const block::SpaceIdentity& identity) : identity_(identity) {
  for (const block::LayerGroup& group : identity.groups) {
    pages_.emplace_back(block::LayoutOfPage(group, 0, identity.block_tokens).page_bytes);
  }
}

absl::Status OwnCache::Store(const std::vector<block::Token>& tokens, uint32_t states_beyond) {
  PREFIXD_ASSIGN_OR_RETURN(
      const block::ReservePlan plan,
      cache_->Reserve(
          session_,
          {.space = space_, .tokens = tokens, .content = {}, .groups = {}, .writable = {}}));
  for (const block::BlockPlan& block : plan.blocks) {
    if (block.state == block::BlockState::kPresent) continue;
    for (uint32_t group = 0; group < identity_.groups.size(); ++group) {
      if (block.rungs[group] == block::kNoLimit) continue;
      PREFIXD_RETURN_IF_ERROR(Put(
          plan.reservation,
          {.group = group, .first_token = block.first_token, .rung = 0, .tokens = block.tokens}));
    }
  }
  for (const uint32_t position : plan.snapshot_tokens) {
    if (position <= states_beyond) continue;
    const uint32_t first = (position - 1) / identity_.block_tokens * identity_.block_tokens;
    const uint32_t length = position - first;
    PREFIXD_RETURN_IF_ERROR(Put(
        plan.reservation, {.group = 1, .first_token = first, .rung = length, .tokens = length}));
  }
  return cache_
      ->Commit(session_, {.reservation = plan.reservation,
                          .tokens = static_cast<uint32_t>(tokens.size()),
                          .sequence_end = true,
                          .ends = {}})
      .status();
}

absl::Status OwnCache::Put(block::ReservationId reservation, const Piece& piece) {
  const block::LayerGroup& group = identity_.groups[piece.group];
  const uint32_t rung = group.kind == block::LayerKind::kState ? 0 : piece.rung;
  const auto page = std::span<const std::byte>(pages_[piece.group])
                        .first(block::LayoutOfPage(group, rung, piece.tokens).page_bytes);
  return cache_->PutPage(session_, reservation,
                         {.group = piece.group,
                          .first_token = piece.first_token,
                          .tokens = piece.tokens,
                          .rung = piece.rung,
                          .page_bytes = page.size(),
                          .xxh3 = base::Xxh3(page),
                          .data = page},
                         Soon());
}

}  // namespace prefixd::bench
