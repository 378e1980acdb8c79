#include "cache/far/far.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::cache {
namespace {

constexpr int64_t kAbsentUs = 5'000'000;       // others may write it meanwhile
constexpr int64_t kPresentUs = 3'600'000'000;  // then it is touched, and asked for, again
constexpr int64_t kPassedUs = 600'000'000;
constexpr int64_t kDownUs = 100'000;

}  // namespace

BlockSlice::BlockSlice(const block::SequenceView& sequence, uint32_t block, uint32_t block_tokens)
    : tokens(sequence.tokens.subspan(size_t{block} * block_tokens, block_tokens)),
      content(
          block::CutContent(sequence.content, block * block_tokens, (block + 1) * block_tokens)) {}

std::string FormatsOf(uint32_t rung) { return absl::StrCat(rung); }

std::string Generations::NameOf(const block::SpaceId& space) const {
  const remote::Namer namer(context_->options.remote.keys, 0, space);
  return remote::KeyOf(namer.Next({}, {}), "g");
}

absl::StatusOr<uint64_t> Generations::Read(const std::string& name, base::Deadline deadline) {
  {
    const base::MutexLock lock(mutex_);
    if (waiting_.contains(name)) {
      return absl::UnavailableError("remote: a clear waits for the store to hear of it");
    }
    const auto known = known_.find(name);
    if (known != known_.end() && context_->Now() - known->second.read_us < kFreshUs) {
      return known->second.number;
    }
  }
  const int64_t asked_us = context_->Now();
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t number,
                           context_->options.remote.store->ReadNumber(name, deadline));
  const base::MutexLock lock(mutex_);
  if (known_.size() >= RecentNames::kMost) known_.clear();
  Known& known = known_[name];
  known = {.number = std::max(number, known.number), .read_us = asked_us};
  return known.number;
}

absl::StatusOr<uint64_t> Generations::Of(const block::SpaceId& space, base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t of_tenant, Read(NameOf({}), deadline));
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t of_space, Read(NameOf(space), deadline));
  return of_tenant << 32 | (of_space & 0xffffffff);
}

absl::Status Generations::RaiseNamed(const std::string& name, base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t number,
                           context_->options.remote.store->RaiseNumber(name, deadline));
  const base::MutexLock lock(mutex_);
  waiting_.erase(name);
  known_[name] = {.number = number, .read_us = context_->Now()};
  return absl::OkStatus();
}

absl::Status Generations::Raise(const block::SpaceId* space, base::Deadline deadline) {
  const std::string name = NameOf(space == nullptr ? block::SpaceId{} : *space);
  {
    const base::MutexLock lock(mutex_);
    waiting_.insert(name);
  }
  ++raises_;
  return RaiseNamed(name, deadline);
}

bool Generations::any_waiting() const {
  const base::MutexLock lock(mutex_);
  return !waiting_.empty();
}

size_t Generations::RaiseWaiting(base::Deadline deadline) {
  std::set<std::string> waiting;
  {
    const base::MutexLock lock(mutex_);
    waiting = waiting_;
  }
  size_t left = 0;
  for (const std::string& name : waiting) left += RaiseNamed(name, deadline).ok() ? 0 : 1;
  return left;
}

void RecentNames::Add(const std::string& name) {
  const int64_t until = context_->Now() + lifetime_us_;
  const base::MutexLock lock(mutex_);
  const auto [there, added] = until_us_.try_emplace(name, until);
  if (!added) order_.erase({there->second, name});
  there->second = until;
  order_[{until, name}] = true;
  while (order_.size() > kMost ||
         (!order_.empty() && order_.begin()->first.first <= context_->Now())) {
    until_us_.erase(order_.begin()->first.second);
    order_.erase(order_.begin());
  }
}

void RecentNames::Forget(const std::string& name) {
  const base::MutexLock lock(mutex_);
  const auto there = until_us_.find(name);
  if (there == until_us_.end()) return;
  order_.erase({there->second, name});
  until_us_.erase(there);
}

bool RecentNames::Contains(const std::string& name) const {
  const base::MutexLock lock(mutex_);
  const auto there = until_us_.find(name);
  return there != until_us_.end() && there->second > context_->Now();
}

Far::Far(Context* context)
    : generations(context),
      absent(context, kAbsentUs),
      present(context, kPresentUs),
      passed(context, kPassedUs),
      spoiled(context, kPresentUs),
      context_(context) {}

bool Far::Serves(const SpaceInfo& space) const {
  return on() && space.identity.weights_digest != base::Digest256{};
}

void Far::SayDown() {
  down_until_us_ = context_->Now() + kDownUs;
  context_->counters.Add("remote.down");
}

void Far::SayAbsent(const std::string& key) {
  absent.Add(key);
  present.Forget(key);
}

void Far::SaySpoiled(const std::string& key) {
  spoiled.Add(key);
  present.Forget(key);
}

void Far::ExtendNames(const SpaceInfo& space, uint64_t generation,
                      const block::SequenceView& sequence, uint32_t blocks,
                      ChainNames* names) const {
  const remote::Namer namer(options().keys, generation, space.id);
  names->reserve(blocks);
  while (names->size() < blocks) {
    const BlockSlice block(sequence, static_cast<uint32_t>(names->size()),
                           space.identity.block_tokens);
    const remote::ChainName parent = names->empty() ? remote::ChainName{} : names->back();
    names->push_back(namer.Next(parent, block.view()));
  }
}

}  // namespace prefixd::cache
