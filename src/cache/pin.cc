// Pin: what is cached of a sequence is loaded, then kept, for as long as somebody says.
#include "cache/pin.h"

#include <algorithm>

#include "base/random.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {
namespace {

constexpr int kTries = 3;  // a block may be superseded between the lease and the pin

block::BlockHash SequenceOf(const SpaceInfo& space, const Request& request) {
  return space.hasher.Hash(block::RootHash(space.id), {request.tokens, request.content});
}

// Tokens of the lease that are readable, once what is under way has come or failed.
uint32_t WaitReadable(const Core& core, const index::Acquired& held, const Patience& patience) {
  uint32_t tokens = held.answer.restorable_tokens;
  for (const index::PageInfo& page : held.pages) {
    if (page.first_token >= tokens) continue;
    const index::PageInfo now = core.AwaitPage(page.ref, patience);
    if (!index::InRam(now.state)) tokens = page.first_token;
  }
  return tokens;
}

absl::Status QuotaError(const Core& core, uint32_t tokens) {
  const uint64_t arena_bytes = core.arena->stats().capacity_bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("pin: only ", tokens, " tokens fit: a session may lease and pin ",
                   base::FormatBytes(arena_bytes / 2), " (half of the RAM tier), all together ",
                   base::FormatBytes(arena_bytes / 10 * 8), ", and ",
                   base::FormatBytes(core.index->Counts().kept_bytes),
                   " are leased or pinned; unpin something"));
}

}  // namespace

void PinTable::Add(block::PinId id, Entry entry) {
  base::MutexLock lock(mutex_);
  entries_[id] = std::move(entry);
  FindNextEnd();
}

std::optional<PinTable::Entry> PinTable::Remove(block::PinId id) {
  base::MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return std::nullopt;
  Entry entry = std::move(found->second);
  entries_.erase(found);
  FindNextEnd();
  return entry;
}

std::pair<block::PinId, PinTable::Entry> PinTable::Find(const SpaceInfo& space,
                                                        const block::BlockHash& sequence) const {
  base::MutexLock lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.space->handle == space.handle && entry.sequence == sequence) return {id, entry};
  }
  return {};
}

bool PinTable::Renew(block::PinId id, int64_t ends_us) {
  base::MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  found->second.ends_us = ends_us;
  FindNextEnd();
  return true;
}

std::vector<PinTable::Entry> PinTable::TakeExpired(int64_t now_us) {
  std::vector<Entry> expired;
  if (now_us < next_end_us_) return expired;
  base::MutexLock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.ends_us == 0 || it->second.ends_us > now_us) {
      ++it;
      continue;
    }
    expired.push_back(std::move(it->second));
    it = entries_.erase(it);
  }
  FindNextEnd();
  return expired;
}

std::vector<std::pair<block::PinId, PinTable::Entry>> PinTable::List() const {
  base::MutexLock lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

void PinTable::FindNextEnd() {
  int64_t next = kNever;
  for (const auto& [id, entry] : entries_) {
    if (entry.ends_us > 0) next = std::min(next, entry.ends_us);
  }
  next_end_us_ = next;
}

void Core::ExpirePins() {
  const std::vector<PinTable::Entry> expired = pins.TakeExpired(Now());
  if (expired.empty()) return;
  for (const PinTable::Entry& entry : expired) {
    index->Unpin(entry.in_index).IgnoreError();  // a Clear may have been faster
  }
  FreeTaken();
  counters.Add("pins.expired", expired.size());
}

void Core::DropPinsOf(const SpaceInfo& space) {
  for (const auto& [id, entry] : pins.List()) {
    if (entry.space->handle == space.handle) pins.Remove(id);
  }
}

absl::StatusOr<Pinned> Core::TryPin(const Session& session, const SpacePtr& space,
                                    const Request& request, const Patience& patience,
                                    block::PinId* in_index) {
  index::Acquired held = index->Acquire(request.space, {request.tokens, request.content},
                                        OptionsOf(request, block::kNoSlot), session.id);
  const Lease lease(this, held.lease, nullptr);  // until the pin holds
  for (const block::Shortening& shortening : held.answer.shortened_by) {
    if (shortening.reason == block::ShortenReason::kLeaseQuota) {
      return QuotaError(*this, held.answer.restorable_tokens);
    }
  }
  const uint32_t leased = held.answer.restorable_tokens;
  StartLoading(*space, 0, patience, &held);
  Pinned pinned;
  pinned.tokens = WaitReadable(*this, held, patience);
  if (!space->regular && pinned.tokens < leased) pinned.tokens = 0;  // worth nothing before its end
  pinned.match = std::move(held.answer);
  if (pinned.tokens == 0) return pinned;
  PREFIXD_ASSIGN_OR_RETURN(*in_index, index->Pin(held.lease, pinned.tokens));
  return pinned;
}

absl::StatusOr<Pinned> Cache::Pin(block::SessionId id, const Request& request,
                                  std::chrono::milliseconds ttl, const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "pin"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  core_->ExpirePins();
  const int64_t now = core_->Now();
  const int64_t ends = ttl.count() == 0 ? 0 : now + std::min(ttl, kMaxPinTtl).count() * 1000;
  const block::BlockHash name = SequenceOf(*space, request);
  const auto [earlier, entry] = core_->pins.Find(*space, name);
  if (earlier && entry.tokens == request.tokens.size() && core_->pins.Renew(earlier, ends)) {
    Pinned renewed;
    renewed.pin = earlier;
    renewed.tokens = entry.tokens;
    renewed.match = core_->index->Match(request.space, {request.tokens, request.content},
                                        OptionsOf(request, block::kNoSlot), id);
    renewed.bytes = core_->PinnedBytes(entry.in_index);
    return renewed;
  }
  block::PinId in_index;
  absl::StatusOr<Pinned> pinned = core_->TryPin(*session, space, request, patience, &in_index);
  for (int i = 1; i < kTries && absl::IsFailedPrecondition(pinned.status()); ++i) {
    pinned = core_->TryPin(*session, space, request, patience, &in_index);
  }
  PREFIXD_RETURN_IF_ERROR(pinned.status());
  pinned->made = !earlier;
  if (earlier) Unpin(earlier).IgnoreError();  // what it held is held by the new one
  if (!in_index) return pinned;
  pinned->pin = block::PinId{base::RandomWord()};  // whoever knows it may end the pin
  pinned->bytes = core_->PinnedBytes(in_index);
  core_->pins.Add(pinned->pin, {.in_index = in_index,
                                .space = space,
                                .sequence = name,
                                .worker = session->worker,
                                .tokens = pinned->tokens,
                                .made_us = now,
                                .ends_us = ends});
  core_->counters.Add("pins.made");
  return pinned;
}

uint64_t Core::PinnedBytes(block::PinId in_index) const {
  for (const index::PrefixIndex::PinInfo& info : index->ListPins()) {
    if (info.pin == in_index) return info.bytes;
  }
  return 0;
}

absl::StatusOr<uint64_t> Cache::Unpin(block::PinId pin) {
  core_->ExpirePins();
  const std::optional<PinTable::Entry> entry = core_->pins.Remove(pin);
  if (!entry.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("unpin: no pin ", absl::Hex(pin.value), "; it may have expired"));
  }
  const uint64_t bytes = core_->PinnedBytes(entry->in_index);
  core_->index->Unpin(entry->in_index).IgnoreError();  // a Clear may have been faster
  core_->FreeTaken();
  return bytes;
}

absl::StatusOr<uint64_t> Cache::Unpin(block::SessionId id, const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "unpin"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  const auto [pin, entry] = core_->pins.Find(*space, SequenceOf(*space, request));
  if (pin) return Unpin(pin);
  return absl::NotFoundError(absl::StrCat("unpin: no pin of this sequence of ",
                                          request.tokens.size(), " tokens; it may have expired"));
}

std::vector<block::PinInfo> Cache::ListPins() const {
  core_->ExpirePins();
  absl::flat_hash_map<block::PinId, index::PrefixIndex::PinInfo> in_index;
  for (const index::PrefixIndex::PinInfo& info : core_->index->ListPins())
    in_index[info.pin] = info;
  std::vector<block::PinInfo> list;
  const int64_t now = core_->Now();
  for (const auto& [id, entry] : core_->pins.List()) {
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

}  // namespace prefixd::cache
