// Bring: what other hosts have of a request and this one lacks enters the tree, with its pages on
// the way.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

constexpr std::chrono::milliseconds kLeastPatience(1);  // in less no server answers
constexpr double kShareOfSaving = 0.1;  // of the prefill that a hit saves, to look for it

uint32_t WholeBlocks(const SpaceInfo& space, const Request& request) {
  const auto tokens = static_cast<uint32_t>(request.tokens.size());
  return std::min(tokens, request.max_tokens) / space.identity.block_tokens;
}

base::Deadline FindUntil(const Far& far, const Request& request, uint32_t missing_tokens) {
  std::chrono::microseconds patience = far.options().find_patience;
  if (request.prefill_tokens_per_s > 0) {
    const double saved_us = missing_tokens / request.prefill_tokens_per_s * 1e6;
    patience = std::min(patience,
                        std::chrono::microseconds(static_cast<int64_t>(saved_us * kShareOfSaving)));
  }
  return std::chrono::steady_clock::now() + patience;
}

// Which pages of the found blocks a hit of all of them needs: of sliding groups those of its window
// and its sinks, of state groups the snapshot at its end.
class Needed {
 public:
  Needed(const SpaceInfo& space, const Request& request, uint32_t first_block, size_t blocks)
      : space_(space),
        request_(request),
        first_block_(first_block),
        end_token_((first_block + static_cast<uint32_t>(blocks)) * space.identity.block_tokens) {}

  bool Has(size_t block, uint32_t group) const {
    const block::LayerGroup& shape = space_.identity.groups[group];
    if (!request_.groups.empty() &&
        std::ranges::find(request_.groups, group) == request_.groups.end()) {
      return false;
    }
    const uint32_t begin =
        (first_block_ + static_cast<uint32_t>(block)) * space_.identity.block_tokens;
    const uint32_t end = begin + space_.identity.block_tokens;
    if (shape.kind == block::LayerKind::kFull) return true;
    if (shape.kind == block::LayerKind::kState) return end == end_token_;
    return begin < shape.sink_tokens || end + shape.window > end_token_;
  }

 private:
  const SpaceInfo& space_;
  const Request& request_;
  const uint32_t first_block_, end_token_;
};

// A model with states goes on only from a snapshot.
void CutToSnapshot(const SpaceInfo& space, std::vector<FoundBlock>* found) {
  const bool states = std::ranges::count(space.identity.groups, block::LayerKind::kState,
                                         &block::LayerGroup::kind) > 0;
  while (states && !found->empty() && !found->back().has_snapshot) found->pop_back();
}

uint64_t PageBytesOf(const FoundBlock& block) {
  uint64_t bytes = 0;
  for (const FoundBundle& bundle : block.bundles) {
    for (const remote::BundlePage& page : bundle.opened.record.pages) bytes += page.page_bytes;
  }
  return bytes;
}

// Cuts to where the time saved by not computing, less the time to load, is largest.
void CutWhatDoesNotPay(const SpaceInfo& space, const LoadModel& model, double tokens_per_s,
                       std::vector<FoundBlock>* found) {
  if (tokens_per_s <= 0) return;
  uint64_t bytes = 0;
  size_t best = 0;
  double best_saved = 0;
  for (size_t i = 0; i < found->size(); ++i) {
    bytes += PageBytesOf((*found)[i]);
    const double saved = static_cast<double>((i + 1) * space.identity.block_tokens) / tokens_per_s -
                         static_cast<double>(model.EstimateMicros(0, 0, bytes)) * 1e-6;
    if (saved <= best_saved) continue;
    best = i + 1;
    best_saved = saved;
  }
  found->resize(best);
}

// Cuts to what a lease of the session may hold beside `held_bytes` of the same request: what nobody
// can lease would only push out what others use.
void CutToLease(const Context& context, uint64_t held_bytes, std::vector<FoundBlock>* found) {
  const uint64_t most = context.IndexLimits(context.index_share_bytes).session_lease_bytes;
  uint64_t bytes = held_bytes;
  size_t fit = 0;
  while (fit < found->size() && (bytes += PageBytesOf((*found)[fit])) <= most) ++fit;
  found->resize(fit);
}

// What the index is told of a block.
index::PrefixIndex::ArrivingBlock ArrivingOf(const SpaceInfo& space, const FoundBlock& found,
                                             const Needed& needed, size_t block) {
  index::PrefixIndex::ArrivingBlock arriving;
  for (const FoundBundle& bundle : found.bundles) {
    for (const remote::BundlePage& page : bundle.opened.record.pages) {
      if (!needed.Has(block, page.group)) continue;
      const uint32_t tokens = space.IsState(page.group) ? page.rung : space.identity.block_tokens;
      const uint64_t payload =
          block::LayoutOfPage(space.identity.groups[page.group], page.rung, tokens).payload_bytes;
      arriving.pages.push_back({.group = page.group,
                                .rung = page.rung,
                                .page_bytes = page.page_bytes,
                                .payload_bytes = payload});
    }
    for (const uint32_t end : bundle.opened.record.ends) arriving.ends.push_back(end);
  }
  return arriving;
}

// The loads of what is expected, one for each bundle that has such pages.
std::vector<FarLoad> LoadsOf(const SpacePtr& space, std::vector<FoundBlock> found,
                             uint32_t first_block, const std::vector<index::PageInfo>& expected) {
  std::vector<FarLoad> loads;
  for (size_t i = 0; i < found.size(); ++i) {
    const uint32_t first_token =
        (first_block + static_cast<uint32_t>(i)) * space->identity.block_tokens;
    for (FoundBundle& bundle : found[i].bundles) {
      FarLoad load{.space = space, .bundle = {}, .expected = {}};
      for (const index::PageInfo& page : expected) {
        const bool in_bundle = std::ranges::any_of(
            bundle.opened.record.pages, [&page](const remote::BundlePage& of_bundle) {
              return of_bundle.group == page.ref.group && of_bundle.rung == page.ref.rung;
            });
        if (page.first_token == first_token && in_bundle) load.expected.push_back(page);
      }
      if (load.expected.empty()) continue;
      load.bundle = std::move(bundle);
      loads.push_back(std::move(load));
    }
  }
  return loads;
}

}  // namespace

bool FallsShort(const Far& far, const SpaceInfo& space, const Request& request,
                const block::MatchAnswer& answer) {
  if (!far.Serves(space) || far.down()) return false;
  const uint32_t here =
      (answer.restorable_tokens + answer.pending_tokens) / space.identity.block_tokens;
  return here < WholeBlocks(space, request);
}

absl::StatusOr<uint32_t> Bring(Context& context, Tables& tables, Far& far, Fetcher& fetcher,
                               Finder& finder, const LoadModel& model, block::SessionId id,
                               const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  const block::MatchAnswer here = context.index->Match(
      request.space, {request.tokens, request.content}, OptionsOf(request, block::kNoSlot), id);
  if (!FallsShort(far, *space, request, here)) return 0;
  const base::Deadline until = FindUntil(
      far, request, static_cast<uint32_t>(request.tokens.size()) - here.restorable_tokens);
  if (until - std::chrono::steady_clock::now() < kLeastPatience) {
    context.counters.Add("remote.not_worth_it");
    return 0;
  }
  const int64_t begun_us = context.Now();
  const uint32_t first_block = here.restorable_tokens / space->identity.block_tokens;
  const uint32_t end_block = WholeBlocks(*space, request);
  const uint64_t raises = far.generations.raises();
  std::vector<FoundBlock> found = finder.Find(*space, request, first_block, end_block, until);
  context.counters.Time("remote.find", static_cast<uint64_t>(context.Now() - begun_us));
  CutToSnapshot(*space, &found);
  const size_t all = found.size();
  context.counters.AddAll({{"remote.lookups", 1}, {"remote.lookups_found", uint64_t{all > 0}}});
  CutWhatDoesNotPay(*space, model, request.prefill_tokens_per_s, &found);
  if (found.size() < all) context.counters.Add("remote.not_worth_it");
  CutToLease(context, here.ram_bytes + here.ssd_bytes, &found);
  CutToSnapshot(*space, &found);
  const Needed needed(*space, request, first_block, found.size());
  std::vector<index::PrefixIndex::ArrivingBlock> arriving;
  for (size_t i = 0; i < found.size(); ++i) {
    arriving.push_back(ArrivingOf(*space, found[i], needed, i));
  }
  const std::vector<index::PageInfo> expected = context.index->AddArriving(
      request.space, {request.tokens, request.content}, first_block, arriving);
  const auto tokens = static_cast<uint32_t>(found.size()) * space->identity.block_tokens;
  context.counters.Add("remote.tokens_found", tokens);
  if (far.generations.raises() != raises) {  // a clear came between: it goes first
    for (const index::PageInfo& page : expected) {
      context.index->FailPromotion(page.ref, index::PrefixIndex::PromotionFailure::kTryAgain);
    }
    return 0;
  }
  fetcher.Enqueue(LoadsOf(space, std::move(found), first_block, expected));
  return tokens;
}

}  // namespace prefixd::cache::verbs
