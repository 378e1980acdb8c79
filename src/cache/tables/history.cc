#include "cache/tables/history.h"

#include <utility>

namespace prefixd::cache {
namespace {

// What the entry takes on the heap too: a short string stands in its own object.
uint64_t BytesOf(const block::PastAnswer& answer) {
  constexpr size_t kInPlace = 15;
  uint64_t bytes = 0;
  for (const std::string* text : {&answer.request_id, &answer.worker}) {
    if (text->capacity() > kInPlace) bytes += text->capacity() + 1;
  }
  return bytes + answer.match.shortened_by.capacity() * sizeof(block::Shortening);
}

bool IsBelow(const block::PastAnswer& answer, double share) {
  if (share <= 0) return true;
  return answer.match.restorable_tokens < share * answer.requested_tokens;
}

}  // namespace

uint64_t History::Add(block::PastAnswer answer, const index::BlockRef& last_full, int64_t at_us) {
  Entry entry{.at_us = at_us,
              .bytes = sizeof(Entry) + BytesOf(answer),
              .answer = {},
              .last_full = last_full};
  entry.answer = std::move(answer);
  base::MutexLock lock(mutex_);
  bytes_ += entry.bytes;
  entries_.push_back(std::move(entry));
  const uint64_t serial = first_serial_ + entries_.size() - 1;
  while (entries_.size() > kMostAnswers || (bytes_ > most_bytes_ && entries_.size() > 1)) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
    ++first_serial_;
  }
  return serial;
}

void History::Learn(uint64_t serial, uint32_t used_tokens, uint64_t load_us,
                    uint64_t first_token_us) {
  base::MutexLock lock(mutex_);
  if (serial < first_serial_ || serial >= first_serial_ + entries_.size()) return;
  block::PastAnswer& answer = entries_[serial - first_serial_].answer;
  answer.used_tokens = used_tokens;
  answer.load_us = load_us;
  answer.first_token_us = first_token_us;
}

block::PastAnswers History::Find(const block::WhyQuery& query, int64_t now_us) const {
  block::PastAnswers found;
  base::MutexLock lock(mutex_);
  found.remembered = entries_.size();
  for (auto it = entries_.rbegin(); it != entries_.rend() && found.answers.size() < query.last;
       ++it) {
    const bool asked = query.request_id.empty() || it->answer.request_id == query.request_id;
    if (!asked || !IsBelow(it->answer, query.below)) continue;
    block::PastAnswer& answer = found.answers.emplace_back(it->answer);
    answer.age_s = static_cast<double>(now_us - it->at_us) * 1e-6;
  }
  return found;
}

std::vector<History::Read> History::Reads(const block::SpaceId* space, int64_t now_us) const {
  std::vector<Read> reads;
  base::MutexLock lock(mutex_);
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (it->last_full.node == nullptr) continue;
    if (space != nullptr && it->answer.space != *space) continue;
    reads.push_back({.space = it->answer.space,
                     .last_full = it->last_full,
                     .tokens = it->answer.match.restorable_tokens,
                     .age_s = static_cast<double>(now_us - it->at_us) * 1e-6});
  }
  return reads;
}

uint64_t History::MemoryBytes() const {
  base::MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace prefixd::cache
