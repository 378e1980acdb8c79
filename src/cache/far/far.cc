#include "cache/far/far.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"

namespace prefixd::cache {
namespace {

constexpr int64_t kAbsentUs = 5'000'000;       // others may write it meanwhile
constexpr int64_t kPresentUs = 3'600'000'000;  // then it is touched, and asked for, again
constexpr int64_t kPassedUs = 600'000'000;
constexpr int64_t kDownUs = 100'000;

// About 50 bytes each, five times.
size_t MostNames(const Context& context) {
  return static_cast<size_t>(std::min<uint64_t>(65'536, context.options.ram_budget_bytes / 16'384));
}

// Beside what else outlives the process.
Wishes::Places WishPlaces(const Context& context) {
  Wishes::Places places;
  if (context.has_ssd()) places.store = context.options.directory + "/prefixd.clears";
  if (context.arena->shared()) places.arena = context.options.arena_path + ".clears";
  return places;
}

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

Generations::Generations(Context* context) : context_(context), wishes_(WishPlaces(*context)) {
  if (context->options.remote.store == nullptr) return;
  waiting_ = wishes_.Load([this](const auto& space) { return NameOf(space); },
                          [this](const std::string& why) {
                            context_->Log(LogLevel::kWarning,
                                          absl::StrCat("clears that wait are not read: ", why));
                          });
  if (waiting_.empty()) return;
  context->Log(LogLevel::kInfo, absl::StrCat("remote: ", waiting_.size(),
                                             " clears wait for the store to hear of "
                                             "them since before this start"));
}

absl::Status Generations::KeepWaiting() {
  const base::MutexLock keeping(keeping_mutex_);
  std::set<block::SpaceId> waiting;
  {
    const base::MutexLock lock(mutex_);
    waiting = waiting_;
  }
  return wishes_.Keep(
      waiting, [this](const auto& space) { return NameOf(space); }, context_->store != nullptr);
}

absl::StatusOr<uint64_t> Generations::Read(const block::SpaceId& space, base::Deadline deadline) {
  {
    const base::MutexLock lock(mutex_);
    if (waiting_.contains(space)) {
      return absl::UnavailableError("remote: a clear waits for the store to hear of it");
    }
    const auto known = known_.find(space);
    if (known != known_.end() && context_->Now() - known->second.read_us < kFreshUs) {
      return known->second.number;
    }
  }
  const int64_t asked_us = context_->Now();
  PREFIXD_ASSIGN_OR_RETURN(uint64_t number,
                           context_->options.remote.store->ReadNumber(NameOf(space), deadline));
  // A store that does not take it back is asked again when the number is read next.
  if (const auto put_back = PutBack(space, number, Seen(space), deadline); put_back.ok()) {
    number = *put_back;
  }
  const base::MutexLock lock(mutex_);
  if (known_.size() >= MostNames(*context_)) known_.clear();
  Known& known = known_[space];
  known = {.number = std::max(number, known.number), .read_us = asked_us};
  return known.number;
}

uint64_t Generations::Seen(const block::SpaceId& space) const {
  const base::MutexLock lock(mutex_);
  const auto known = known_.find(space);
  return known == known_.end() ? 0 : known->second.number;
}

absl::StatusOr<uint64_t> Generations::PutBack(const block::SpaceId& space, uint64_t number,
                                              uint64_t least, base::Deadline deadline) {
  if (number >= least) return number;
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t now, context_->options.remote.store->RestoreNumber(
                                                   NameOf(space), least, deadline));
  context_->counters.Add("remote.clears_put_back");
  context_->Log(
      LogLevel::kWarning,
      absl::StrCat("remote: the store had lost that something was cleared (its number is ", number,
                   ", it should be at least ", least, "): it is told again"));
  return now;
}

absl::StatusOr<uint64_t> Generations::Of(const block::SpaceId& space, base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t of_tenant, Read({}, deadline));
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t of_space, Read(space, deadline));
  return of_tenant << 32 | (of_space & 0xffffffff);
}

absl::Status Generations::RaiseOne(const block::SpaceId& space, base::Deadline deadline) {
  const uint64_t before = Seen(space);
  PREFIXD_ASSIGN_OR_RETURN(uint64_t number,
                           context_->options.remote.store->RaiseNumber(NameOf(space), deadline));
  PREFIXD_ASSIGN_OR_RETURN(number, PutBack(space, number, before + 1, deadline));
  {
    const base::MutexLock lock(mutex_);
    waiting_.erase(space);
    Known& known = known_[space];
    known = {.number = std::max(number, known.number), .read_us = context_->Now()};
  }
  KeepWaiting().IgnoreError();  // what stands there too long is raised once more
  return absl::OkStatus();
}

absl::Status Generations::Raise(const block::SpaceId* space, base::Deadline deadline) {
  const block::SpaceId raised = space == nullptr ? block::SpaceId{} : *space;
  {
    const base::MutexLock lock(mutex_);
    waiting_.insert(raised);
  }
  ++raises_;
  const absl::Status kept = KeepWaiting();  // first: this process may end meanwhile
  const absl::Status heard = RaiseOne(raised, deadline);
  if (!heard.ok() && !kept.ok()) {
    context_->Log(LogLevel::kWarning,
                  absl::StrCat("a clear that the shared store has not heard of is forgotten when "
                               "this process ends: ",
                               std::string(kept.message())));
  }
  return heard;
}

bool Generations::any_waiting() const {
  const base::MutexLock lock(mutex_);
  return !waiting_.empty();
}

size_t Generations::RaiseWaiting(base::Deadline deadline) {
  std::set<block::SpaceId> waiting;
  {
    const base::MutexLock lock(mutex_);
    waiting = waiting_;
  }
  size_t left = 0;
  for (const block::SpaceId& space : waiting) left += RaiseOne(space, deadline).ok() ? 0 : 1;
  return left;
}

uint64_t Generations::MemoryBytes() const {
  const base::MutexLock lock(mutex_);
  return known_.capacity() * (sizeof(block::SpaceId) + sizeof(Known) + 1);
}

RecentNames::RecentNames(const Context* context, int64_t lifetime_us)
    : context_(context), lifetime_us_(lifetime_us), most_(MostNames(*context)) {}

void RecentNames::Add(const std::string& name) {
  const int64_t now = context_->Now();
  const uint64_t hash = base::Xxh3(base::AsBytes(name));
  const base::MutexLock lock(mutex_);
  until_us_[hash] = now + lifetime_us_;
  order_.emplace_back(now + lifetime_us_, hash);
  while (order_.size() > most_ || (!order_.empty() && order_.front().first <= now)) {
    const auto there = until_us_.find(order_.front().second);
    const bool added_again = there != until_us_.end() && there->second != order_.front().first;
    if (there != until_us_.end() && !added_again) until_us_.erase(there);
    order_.pop_front();
  }
}

void RecentNames::Forget(const std::string& name) {
  const base::MutexLock lock(mutex_);
  until_us_.erase(base::Xxh3(base::AsBytes(name)));
}

bool RecentNames::Contains(const std::string& name) const {
  const base::MutexLock lock(mutex_);
  const auto there = until_us_.find(base::Xxh3(base::AsBytes(name)));
  return there != until_us_.end() && there->second > context_->Now();
}

uint64_t RecentNames::MemoryBytes() const {
  const base::MutexLock lock(mutex_);
  return until_us_.capacity() * (2 * sizeof(uint64_t) + 1) + order_.size() * sizeof(order_.front());
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

uint64_t Far::MemoryBytes() const {
  return generations.MemoryBytes() + absent.MemoryBytes() + present.MemoryBytes() +
         passed.MemoryBytes() + spoiled.MemoryBytes();
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
