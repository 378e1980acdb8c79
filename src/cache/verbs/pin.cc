// Pin: what is cached of a sequence is loaded, then kept, for as long as the caller says.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/random.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

constexpr int kTries = 3;  // a block may be superseded between the lease and the pin

block::BlockHash SequenceOf(const SpaceInfo& space, const Request& request) {
  return space.hasher.Hash(block::RootHash(space.id), {request.tokens, request.content});
}

// Returns the tokens of the lease that are readable once what is under way has come or failed.
uint32_t WaitReadable(const Loader& loader, const index::Acquired& held, const Patience& patience) {
  uint32_t tokens = held.answer.restorable_tokens;
  for (const index::PageInfo& page : held.pages) {
    if (page.first_token >= tokens) continue;
    const index::PageInfo now = loader.Await(page.ref, patience);
    if (!index::InRam(now.state)) tokens = page.first_token;
  }
  return tokens;
}

absl::Status QuotaError(const Context& context, uint32_t tokens) {
  const uint64_t arena_bytes = context.arena->stats().capacity_bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("pin: only ", tokens, " tokens fit: a session may lease and pin ",
                   base::FormatBytes(arena_bytes / 2), " (half of the RAM tier), all together ",
                   base::FormatBytes(arena_bytes / 10 * 8), ", and ",
                   base::FormatBytes(context.index->Counts().kept_bytes),
                   " are leased or pinned; unpin something"));
}

absl::StatusOr<Pinned> TryPin(Context& context, Loader& loader, block::SessionId session,
                              const SpaceInfo& space, const Request& request,
                              const Patience& patience, block::PinId* in_index) {
  index::MatchOptions options = OptionsOf(request, block::kNoSlot);
  options.reads = false;
  index::Acquired held =
      context.index->Acquire(request.space, {request.tokens, request.content}, options, session);
  const Lease lease(&context, held.lease, nullptr);  // until the pin holds
  for (const block::Shortening& shortening : held.answer.shortened_by) {
    if (shortening.reason == block::ShortenReason::kLeaseQuota) {
      return QuotaError(context, held.answer.restorable_tokens);
    }
  }
  const uint32_t leased = held.answer.restorable_tokens;
  loader.Start(space, patience, &held);
  Pinned pinned;
  pinned.tokens = WaitReadable(loader, held, patience);
  if (!space.regular && pinned.tokens < leased) pinned.tokens = 0;  // worth nothing before its end
  pinned.match = std::move(held.answer);
  if (pinned.tokens == 0) return pinned;
  PREFIXD_ASSIGN_OR_RETURN(*in_index, context.index->Pin(held.lease, pinned.tokens));
  return pinned;
}

uint64_t PinnedBytes(const Context& context, block::PinId in_index) {
  for (const index::PrefixIndex::PinInfo& info : context.index->ListPins()) {
    if (info.pin == in_index) return info.bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<Pinned> Pin(Context& context, Tables& tables, Loader& loader, block::SessionId id,
                           const Request& request, std::chrono::milliseconds ttl,
                           const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "pin"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  tables.pins.Expire();
  const int64_t now = context.Now();
  const int64_t ends = ttl.count() == 0 ? 0 : now + std::min(ttl, kMaxPinTtl).count() * 1000;
  const block::BlockHash name = SequenceOf(*space, request);
  const auto [earlier, entry] = tables.pins.Find(*space, name);
  if (earlier && entry.tokens == request.tokens.size() && tables.pins.Renew(earlier, ends)) {
    Pinned renewed;
    renewed.pin = earlier;
    renewed.tokens = entry.tokens;
    renewed.match = context.index->Match(request.space, {request.tokens, request.content},
                                         OptionsOf(request, block::kNoSlot), id);
    renewed.bytes = PinnedBytes(context, entry.in_index);
    return renewed;
  }
  block::PinId in_index;
  absl::StatusOr<Pinned> pinned = TryPin(context, loader, id, *space, request, patience, &in_index);
  for (int i = 1; i < kTries && absl::IsFailedPrecondition(pinned.status()); ++i) {
    pinned = TryPin(context, loader, id, *space, request, patience, &in_index);
  }
  PREFIXD_RETURN_IF_ERROR(pinned.status());
  pinned->made = !earlier;
  if (earlier)
    Unpin(context, tables.pins, earlier).IgnoreError();  // what it held is held by the new one
  if (!in_index) return pinned;
  pinned->pin = block::PinId{base::RandomWord()};  // whoever knows it may end the pin
  pinned->bytes = PinnedBytes(context, in_index);
  tables.pins.Add(pinned->pin, {.in_index = in_index,
                                .space = space,
                                .sequence = name,
                                .worker = session->worker,
                                .tokens = pinned->tokens,
                                .made_us = now,
                                .ends_us = ends});
  context.counters.Add("pins.made");
  return pinned;
}

absl::StatusOr<uint64_t> Unpin(Context& context, PinTable& pins, block::PinId pin) {
  pins.Expire();
  const std::optional<PinTable::Entry> entry = pins.Remove(pin);
  if (!entry.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("unpin: no pin ", absl::Hex(pin.value), "; it may have expired"));
  }
  const uint64_t bytes = PinnedBytes(context, entry->in_index);
  context.index->Unpin(entry->in_index).IgnoreError();  // a Clear may have been faster
  context.FreeTaken();
  return bytes;
}

absl::StatusOr<uint64_t> Unpin(Context& context, Tables& tables, block::SessionId id,
                               const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "unpin"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  const auto [pin, entry] = tables.pins.Find(*space, SequenceOf(*space, request));
  if (pin) return Unpin(context, tables.pins, pin);
  return absl::NotFoundError(absl::StrCat("unpin: no pin of this sequence of ",
                                          request.tokens.size(), " tokens; it may have expired"));
}

std::vector<block::PinInfo> ListPins(Context& context, PinTable& pins) {
  pins.Expire();
  absl::flat_hash_map<block::PinId, index::PrefixIndex::PinInfo> in_index;
  for (const index::PrefixIndex::PinInfo& info : context.index->ListPins())
    in_index[info.pin] = info;
  std::vector<block::PinInfo> list;
  const int64_t now = context.Now();
  for (const auto& [id, entry] : pins.List()) {
    const auto found = in_index.find(entry.in_index);
    if (found == in_index.end()) continue;  // cleared this moment
    block::PinInfo info{.pin = id, .space = entry.space->id, .worker = entry.worker};
    info.tokens = entry.tokens;
    info.pages = found->second.pages;
    info.bytes = found->second.bytes;
    info.age_s = static_cast<double>(now - entry.made_us) * 1e-6;
    if (entry.ends_us > 0) info.left_s = static_cast<double>(entry.ends_us - now) * 1e-6;
    list.push_back(std::move(info));
  }
  return list;
}

}  // namespace prefixd::cache::verbs
