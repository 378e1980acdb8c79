#include "cache/far/writer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace prefixd::cache {
namespace {

constexpr size_t kTouchedAtOnce = 256;
constexpr std::chrono::milliseconds kTimeToAnswer(250);  // before the caller's own deadline
constexpr std::chrono::seconds kLookAround(1);           // for clears that wait
constexpr std::chrono::seconds kHitPatience(1);          // what is offered waits meanwhile

uint64_t BytesOf(const Offer& offer) {
  return offer.tokens.size() * sizeof(block::Token) +
         offer.content.size() * sizeof(block::ContentKey);
}

base::Deadline In(std::chrono::milliseconds patience) {
  return std::chrono::steady_clock::now() + patience;
}

}  // namespace

// The pages of one block that other hosts can use.
class Writer::HeldBlock {
 public:
  HeldBlock(Context* context, block::SessionId owner, const Chain& chain, uint32_t block)
      : context_(context) {
    const SpaceInfo& space = *chain.offer.space;
    const index::Acquired held =
        context->index->LeaseBlock(space.handle, chain.view(), block, owner);
    lease_ = held.lease;
    for (uint32_t rung = 0; rung < block::kMaxLadder && pages.empty(); ++rung) {
      for (const index::PageInfo& page : held.pages) {
        if (!space.IsState(page.ref.group) && page.ref.rung == rung) pages.push_back(page);
      }
      if (!IsWhole(space)) pages.clear();
    }
    for (const index::PageInfo& page : held.pages) {
      const bool at_end = page.ref.rung == space.identity.block_tokens;
      if (space.IsState(page.ref.group) && at_end) snapshot.push_back(page);
    }
    const auto states = std::ranges::count(space.identity.groups, block::LayerKind::kState,
                                           &block::LayerGroup::kind);
    if (snapshot.size() != static_cast<size_t>(states)) snapshot.clear();
  }
  ~HeldBlock() {
    if (lease_) context_->index->Release(lease_).IgnoreError();
  }
  HeldBlock(const HeldBlock&) = delete;
  HeldBlock& operator=(const HeldBlock&) = delete;

  uint32_t rung() const { return pages.front().ref.rung; }
  // The pages of keys and values, in one rung; empty if a full group lacks its page. Sliding groups
  // may lack theirs.
  std::vector<index::PageInfo> pages;
  std::vector<index::PageInfo> snapshot;  // of all states at the block's end, or empty

 private:
  bool IsWhole(const SpaceInfo& space) const {
    for (uint32_t group = 0; group < space.identity.groups.size(); ++group) {
      if (space.identity.groups[group].kind != block::LayerKind::kFull) continue;
      if (std::ranges::none_of(
              pages, [group](const index::PageInfo& page) { return page.ref.group == group; })) {
        return false;
      }
    }
    return !pages.empty();
  }

  Context* const context_;
  block::LeaseId lease_;
};

Writer::Writer(Context* context, Far* far, SpaceBoard* board)
    : context_(context),
      far_(far),
      board_(board),
      owner_(context->NewOwner()),
      budget_({.bytes_per_s = far->options().write_bytes_per_s,
               .window = far->options().write_window,
               .share = far->options().write_share},
              context->options.clock) {
  // What is asked for while all of RAM is read once may be saved up, and is at first.
  budget_.SaveUpTo(context->options.ram_budget_bytes);
  budget_.Add(context->options.ram_budget_bytes);
}

void Writer::Take(Offer offer) {
  {
    const base::MutexLock lock(mutex_);
    offered_bytes_ += BytesOf(offer);
    offers_.push_back(std::move(offer));
    const uint64_t most_bytes = context_->options.ram_budget_bytes / kPartOfRam;
    while (offers_.size() > kMostOffers || (offers_.size() > 1 && offered_bytes_ > most_bytes)) {
      offered_bytes_ -= BytesOf(offers_.front());
      offers_.pop_front();
      context_->counters.Add("remote.passed_over");
    }
  }
  wake_.NotifyAll();
}

bool Writer::WantsHit() {
  if (!far_->on()) return false;
  int64_t next = next_hit_us_.load(std::memory_order_relaxed);
  return context_->Now() >= next &&
         next_hit_us_.compare_exchange_strong(next, context_->Now() + kHitUs);
}

void Writer::TakeHit(Offer hit) {
  const base::MutexLock lock(mutex_);
  const bool small = BytesOf(hit) <= context_->options.ram_budget_bytes / kPartOfRam;
  if (small) hit_ = std::move(hit);
}

uint64_t Writer::MemoryBytes() const {
  const base::MutexLock lock(mutex_);
  return offered_bytes_ + (hit_.has_value() ? BytesOf(*hit_) : 0) + board_->MemoryBytes();
}

bool Writer::WaitIdle(const Patience& patience) {
  const Patience in_time = patience.Before(patience.until() - kTimeToAnswer);
  const base::MutexLock lock(mutex_);
  while (!offers_.empty() || working_) {
    if (in_time.over() || stopped_) return false;
    done_.WaitUntil(mutex_, in_time.next_look());
  }
  return true;
}

bool Writer::MayWrite(const std::string& key, uint32_t first_token) {
  const Admission admits = budget_.admits();
  if (admits == Admission::kAll) return true;
  const bool likely = first_token < far_->options().shallow_tokens || far_->passed.Contains(key);
  if (admits == Admission::kLikelyReuse && likely) return true;
  far_->passed.Add(key);
  context_->counters.Add("remote.not_written.budget");
  return false;
}

bool Writer::LearnPresent(const std::vector<std::string>& keys) {
  std::vector<std::string> unknown;
  for (const std::string& key : keys) {
    if (!far_->present.Contains(key)) unknown.push_back(key);
  }
  for (size_t begin = 0; begin < unknown.size(); begin += kTouchedAtOnce) {
    const auto batch =
        std::span(unknown).subspan(begin, std::min(kTouchedAtOnce, unknown.size() - begin));
    const absl::StatusOr<std::vector<bool>> there =
        far_->store().Touch(batch, In(far_->options().store_patience));
    if (!there.ok()) return false;
    for (size_t i = 0; i < batch.size(); ++i) {
      if ((*there)[i] && !far_->spoiled.Contains(batch[i])) far_->present.Add(batch[i]);
    }
    if (!there->back()) break;  // what follows is seldom there
  }
  return true;
}

// What a record says of the block itself.
remote::BundleRecord Writer::RecordOf(const Chain& chain, uint32_t block) {
  const SpaceInfo& space = *chain.offer.space;
  const BlockSlice slice(chain.view(), block, space.identity.block_tokens);
  return {.space = space.id,
          .generation = chain.generation,
          .name = chain.names[block],
          .parent = block == 0 ? remote::ChainName{} : chain.names[block - 1],
          .first_token = block * space.identity.block_tokens,
          .formats = {},
          .tokens = {slice.tokens.begin(), slice.tokens.end()},
          .content = slice.content,
          .ends = {},
          .pages = {}};
}

bool Writer::Send(const std::string& key, std::span<const index::PageInfo> pages,
                  remote::BundleRecord* record) {
  std::vector<std::span<const std::byte>> bytes;
  uint64_t sum = 0;
  for (const index::PageInfo& page : pages) {
    record->pages.push_back(
        {.group = page.ref.group, .rung = page.ref.rung, .page_bytes = page.page_bytes});
    bytes.emplace_back(context_->arena->data(page.extent), page.page_bytes);
    sum += page.page_bytes;
  }
  if (sum > remote::kMaxBundleBytes) {
    context_->counters.Add("remote.not_written.too_large");
    return false;
  }
  const InFlight copy(&context_->in_flight_bytes, sum);
  const remote::SealedBundle sealed =
      remote::SealBundle(far_->options().keys, far_->options().seal, *record, bytes);
  std::vector<remote::ConstRuns> stripes;
  for (const std::span<const std::byte>& stripe : sealed.stripes) stripes.push_back({stripe});
  const int64_t begun_us = context_->Now();
  const absl::Status stored = far_->store().Store(key, std::as_bytes(std::span(sealed.record)),
                                                  stripes, In(far_->options().store_patience));
  if (!stored.ok()) {
    context_->counters.Add(absl::IsResourceExhausted(stored) ? "remote.not_written.full"
                                                             : "remote.not_written.failed");
    return false;
  }
  budget_.Take(sum);
  context_->counters.AddAll({{"remote.blocks_written", 1}, {"remote.bytes_written", sum}});
  context_->counters.Time("remote.store", static_cast<uint64_t>(context_->Now() - begun_us));
  return true;
}

bool Writer::WriteBundle(const Chain& chain, uint32_t block, const HeldBlock& held, bool snapshot) {
  const SpaceInfo& space = *chain.offer.space;
  const std::vector<index::PageInfo>& pages = snapshot ? held.snapshot : held.pages;
  if (pages.empty()) return false;
  const std::string formats = snapshot ? kSnapshotFormats : FormatsOf(held.rung());
  const std::string key = remote::KeyOf(chain.names[block], formats);
  // The chain's keys of rung 0 were asked for at once.
  if ((snapshot || held.rung() > 0) && !LearnPresent({key})) {
    context_->counters.Add("remote.not_written.failed");
    return false;
  }
  if (far_->present.Contains(key)) return true;
  if (!MayWrite(key, block * space.identity.block_tokens)) return false;
  remote::BundleRecord record = RecordOf(chain, block);
  record.formats = formats;
  if (!Send(key, pages, &record)) return false;
  far_->present.Add(key);
  far_->absent.Forget(key);
  far_->passed.Forget(key);
  far_->spoiled.Forget(key);
  return true;
}

bool Writer::WriteBlock(const Chain& chain, uint32_t block) {
  const HeldBlock held(context_, owner_, chain, block);
  if (!held.snapshot.empty()) WriteBundle(chain, block, held, true);
  return WriteBundle(chain, block, held, false);
}

void Writer::TouchAll(std::span<const std::string> keys) {
  for (size_t begin = 0; begin < keys.size(); begin += kTouchedAtOnce) {
    const auto batch = keys.subspan(begin, std::min(kTouchedAtOnce, keys.size() - begin));
    if (!far_->store().Touch(batch, In(far_->options().store_patience)).ok()) return;
  }
}

std::optional<Writer::Chain> Writer::ChainOf(const Offer& offer, base::Deadline deadline) const {
  const SpaceInfo& space = *offer.space;
  const auto blocks = static_cast<uint32_t>(offer.tokens.size() / space.identity.block_tokens);
  const absl::StatusOr<uint64_t> generation = far_->generations.Of(space.id, deadline);
  if (!generation.ok()) return std::nullopt;
  Chain chain{.offer = offer, .generation = *generation, .names = {}, .keys = {}};
  far_->ExtendNames(space, *generation, chain.view(), blocks, &chain.names);
  for (const remote::ChainName& name : chain.names) {
    chain.keys.push_back(remote::KeyOf(name, FormatsOf(0)));
  }
  return chain;
}

void Writer::TouchHit(const Offer& hit) {
  if (far_->down()) return;
  const base::Deadline deadline = In(kHitPatience);
  const std::optional<Chain> chain = ChainOf(hit, deadline);
  if (!chain.has_value()) return;
  std::vector<std::string> keys;  // parents last: none goes before what hangs from it
  for (auto key = chain->keys.rbegin(); key != chain->keys.rend(); ++key) {
    if (!far_->present.Contains(*key)) keys.push_back(*key);
  }
  uint64_t touched = 0;
  for (size_t begin = 0; begin < keys.size() && !stopping_; begin += kTouchedAtOnce) {
    const auto batch =
        std::span(keys).subspan(begin, std::min(kTouchedAtOnce, keys.size() - begin));
    const absl::StatusOr<std::vector<bool>> there = far_->store().Touch(batch, deadline);
    if (!there.ok()) break;
    for (size_t i = 0; i < batch.size(); ++i) {
      if (!(*there)[i]) continue;
      ++touched;
      if (!far_->spoiled.Contains(batch[i])) far_->present.Add(batch[i]);
    }
  }
  if (touched > 0) context_->counters.Add("remote.touched", touched);
}

void Writer::WriteChain(const Offer& offer) {
  const SpaceInfo& space = *offer.space;
  const std::optional<Chain> whole = ChainOf(offer, In(far_->options().store_patience));
  if (!whole.has_value()) return context_->counters.Add("remote.not_written.failed");
  const Chain& chain = *whole;
  const std::vector<std::string>& keys = chain.keys;
  const auto blocks = static_cast<uint32_t>(keys.size());
  if (!LearnPresent(keys)) return context_->counters.Add("remote.not_written.failed");
  uint32_t block = 0, written = 0;
  for (; block < blocks && !stopping_; ++block) {
    if (space.regular && far_->present.Contains(keys[block])) continue;
    if (!WriteBlock(chain, block)) break;
    ++written;
  }
  // A server gives up what was used longest ago: parents must not go before what hangs from them.
  if (written > 0) TouchAll(std::span(keys).first(block));
}

bool Writer::Step() {
  Offer offer;
  {
    const base::MutexLock lock(mutex_);
    if (offers_.empty()) return false;
    offer = std::move(offers_.front());
    offers_.pop_front();
    offered_bytes_ -= BytesOf(offer);
    working_ = true;
  }
  WriteChain(offer);
  const base::MutexLock lock(mutex_);
  working_ = false;
  done_.NotifyAll();
  return true;
}

bool Writer::StepHit() {
  std::optional<Offer> hit;
  {
    const base::MutexLock lock(mutex_);
    hit.swap(hit_);
  }
  if (hit.has_value()) TouchHit(*hit);
  return hit.has_value();
}

void Writer::Run() {
  for (;;) {
    budget_.Asked(context_->far_asked_bytes.exchange(0));
    // Before what is written: nothing is, while a clear of its space waits.
    if (far_->generations.any_waiting()) {
      far_->generations.RaiseWaiting(In(far_->options().store_patience));
    }
    board_->Step(In(far_->options().store_patience));
    if (Step() || StepHit()) continue;
    const base::MutexLock lock(mutex_);
    if (offers_.empty() && !stopped_) {
      wake_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kLookAround);
    }
    if (stopped_) return;
  }
}

void Writer::Stop() {
  stopping_ = true;
  {
    const base::MutexLock lock(mutex_);
    stopped_ = true;
  }
  wake_.NotifyAll();
}

}  // namespace prefixd::cache
