#include "cache/tables/pins.h"

#include <algorithm>

namespace prefixd::cache {

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

void PinTable::Expire() {
  const std::vector<Entry> expired = TakeExpired(context_->Now());
  if (expired.empty()) return;
  for (const Entry& entry : expired) {
    context_->index->Unpin(entry.in_index).IgnoreError();  // a Clear may have been faster
  }
  context_->FreeTaken();
  context_->counters.Add("pins.expired", expired.size());
}

void PinTable::RemoveThoseOf(const SpaceInfo& space) {
  base::MutexLock lock(mutex_);
  std::erase_if(entries_,
                [&space](const auto& known) { return known.second.space->handle == space.handle; });
  FindNextEnd();
}

}  // namespace prefixd::cache
