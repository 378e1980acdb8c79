#include "sizing/simulation.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "sizing/dirty_order.h"
#include "sizing/simulated_ram.h"
#include "sizing/simulated_ssd.h"

namespace prefixd::sizing {
namespace {

constexpr uint32_t kQuarters = 4;                        // of a full block
constexpr uint64_t kStartEighths = 2, kGoOnEighths = 3;  // as cache/room/spill_demand.h
constexpr int kVainRounds = 3;
constexpr int kEvictedAtOnce = 256;

class Cache {
 public:
  Cache(const Trace& trace, const CacheSize& size)
      : trace_(trace),
        size_(size),
        index_share_(size.index_bytes),
        ram_(trace.unique, QuartersOf(size.ram_tokens)),
        ssd_(trace.unique, QuartersOf(size.ssd_tokens), SegmentOf(size)),
        writes_(size.ssd_write_share, QuartersOf(size.ssd_tokens)),
        of_ssd_(ssd_.enabled() ? trace.unique : 0),
        dirty_(ssd_.enabled() ? trace.unique : 0) {}

  void Play(const Trace::Request& request, Hits* hits) {
    const std::span<const TraceBlock> path = trace_.blocks(request);
    ++uses_;
    const size_t found = LookUp(path, hits);
    Refresh(path.first(found), /*read=*/true);
    const size_t loaded = Load(path.first(found));
    if (loaded < found) {  // it is as if the rest was not there
      for (size_t i = loaded; i < found; ++i) hits->ssd_tokens -= TokensOf(path[i]);
    }
    const size_t stored = Store(path, loaded);
    if (loaded < path.size()) MakeIndexRoom();
    Refresh(path.first(stored), /*read=*/false);
  }
  uint64_t written() const { return ssd_.written(); }

 private:
  // What is known of a block beside its place in RAM; only where there is an SSD.
  struct OfSsd {
    uint64_t dropped = 0;  // when it was given up last, in blocks given up; 0: never
    uint64_t first_token = 0;
    bool was_ghost = false;  // given up shortly before it was stored
    bool refused = false;    // the SSD does not want it
  };
  uint64_t QuartersOf(uint64_t tokens) const {
    return tokens * kQuarters / std::max<uint32_t>(1, trace_.block_tokens);
  }
  uint64_t SegmentOf(const CacheSize& size) const {
    return std::max<uint64_t>(
        kQuarters,
        QuartersOf(size.ssd_segment_tokens > 0 ? size.ssd_segment_tokens : size.ssd_tokens / 64));
  }
  uint64_t TokensOf(TraceBlock block) const { return trace_.block_sizes[block]; }
  // An extent has room for a quarter, a half or the whole of a block.
  uint32_t SizeOf(TraceBlock block) const {
    const uint64_t tokens = TokensOf(block) * kQuarters;
    return tokens <= trace_.block_tokens ? 1 : tokens <= 2 * uint64_t{trace_.block_tokens} ? 2 : 4;
  }

  size_t LookUp(std::span<const TraceBlock> path, Hits* hits) {
    size_t found = 0;
    uint64_t asked = 0;
    for (; found < path.size(); ++found) {
      const TraceBlock block = path[found];
      const bool in_ram = ram_.Has(block);
      if (!in_ram && !ssd_.Has(block)) break;
      (in_ram ? hits->ram_tokens : hits->ssd_tokens) += TokensOf(block);
      asked += SizeOf(block);
    }
    writes_.Asked(asked);
    return found;
  }

  void Touch(TraceBlock block, bool read) {
    ram_.Touch(block, uses_, read);
    if (!ssd_.enabled()) return;
    if (dirty_.Has(block)) dirty_.Touch(block);
    if (read && std::exchange(of_ssd_[block].refused, false)) SetDirty(block);
  }
  // Leaf to root: no block is older than those behind it.
  void Refresh(std::span<const TraceBlock> path, bool read) {
    for (auto at = path.rbegin(); at != path.rend(); ++at) {
      if (ram_.Has(*at)) Touch(*at, read);
    }
  }

  // Brings what is on SSD alone into RAM. Returns how many blocks of the path are there then.
  size_t Load(std::span<const TraceBlock> path) {
    for (size_t i = 0; i < path.size(); ++i) {
      if (ram_.Has(path[i])) continue;
      if (!MakeRoom(SizeOf(path[i])) || !ssd_.Has(path[i])) return i;
      Insert(path, i);
      ram_.SetMayGo(path[i], true);
      Touch(path[i], /*read=*/true);
    }
    return path.size();
  }

  // Stores what is missing, as far as there is room. Returns how many blocks are there then.
  size_t Store(std::span<const TraceBlock> path, size_t first) {
    for (size_t i = first; i < path.size(); ++i) {
      const TraceBlock block = path[i];
      if (ram_.Has(block)) continue;
      if (!MakeRoom(SizeOf(block))) return i;
      Insert(path, i);
      if (!ssd_.enabled() || ssd_.Has(block)) {
        ram_.SetMayGo(block, true);
        continue;
      }
      OfSsd& of = of_ssd_[block];
      of.first_token = i * uint64_t{trace_.block_tokens};
      of.was_ghost = of.dropped > 0 && drops_ - of.dropped < size_.ghosts;
      of.refused = false;
      SetDirty(block);
      writes_.Asked(SizeOf(block));
      if (CleanBelow(kStartEighths)) SpillAhead();
    }
    return path.size();
  }

  void Insert(std::span<const TraceBlock> path, size_t i) {
    if (ssd_.Has(path[i])) --on_ssd_alone_;
    ram_.Insert(path[i], i == 0 ? kNoBlock : path[i - 1], SizeOf(path[i]), uses_);
  }

  // --- the index's memory: cache/room/room.cc, MakeIndexRoom ---
  uint64_t IndexBytes() const {
    constexpr uint64_t kEntry = 24;  // of a ghost, in a table and in a list (index/space.h)
    const uint64_t ghosts = std::min(size_.ghosts, drops_);
    return (ram_.blocks() + on_ssd_alone_) * size_.index_bytes_per_block +
           ram_.blocks() * size_.index_bytes_in_ram + ghosts * kEntry +
           std::bit_ceil(ghosts * 8 / 7 + 1) * (kEntry + 1);
  }
  bool IndexAbove(uint64_t sixteenths) const {
    return index_share_ > 0 && IndexBytes() > index_share_ / 16 * sixteenths;
  }
  // Takes one slab from RAM. False: the index has all that it may have, or nothing may go.
  bool GrowIndex() {
    if (index_share_ >= size_.index_most_bytes) return false;
    const uint64_t slab = QuartersOf(size_.ram_tokens_of_slab);
    if (ram_.capacity() <= slab || !MakeRoom(slab)) return false;
    ram_.Shrink(slab);
    index_share_ += std::min(size_.slab_bytes, size_.index_most_bytes - index_share_);
    return true;
  }
  // Forgets what was used longest ago, in RAM or on SSD.
  void MakeIndexRoom() {
    while (IndexAbove(15) && GrowIndex()) {
    }
    if (!IndexAbove(15)) return;
    for (int vain = 0; vain < kVainRounds;) {
      if (ssd_.enabled()) ForgetOnSsd();
      if (!IndexAbove(14)) return;
      int evicted = 0;
      for (; evicted < kEvictedAtOnce; ++evicted) {
        const TraceBlock victim = ram_.Victim(uses_);
        if (victim == kNoBlock || DirtyGoesBefore(victim)) break;
        Evict(victim);
      }
      if (evicted > 0) continue;
      if (!IndexAbove(15) || !ssd_.enabled()) return;
      if (!Spill(ssd_.last_id(), /*insists=*/false)) ++vain;
    }
  }
  bool DirtyGoesBefore(TraceBlock victim) const {
    return !dirty_.empty() && ram_.stamp(dirty_.oldest()) < ram_.stamp(victim);
  }
  // Forgets the coldest blocks that only the SSD has, if they are colder than what goes next from
  // RAM.
  void ForgetOnSsd() {
    const TraceBlock next = ram_.Victim(uses_);
    uint64_t colder_than = next == kNoBlock ? ~uint64_t{0} : ram_.stamp(next);
    if (!dirty_.empty()) colder_than = std::min(colder_than, ram_.stamp(dirty_.oldest()));
    std::vector<std::pair<uint64_t, TraceBlock>> found;
    for (size_t i = 0; i < ssd_.segments(); ++i) {
      for (const TraceBlock block : ssd_.segment(i).blocks) {
        if (ssd_.IsIn(block, ssd_.segment(i)) && !ram_.Has(block) &&
            ram_.stamp(block) < colder_than) {
          found.emplace_back(ram_.stamp(block), block);
        }
      }
    }
    std::ranges::sort(found);
    for (const auto& [stamp, block] : found) {
      if (!IndexAbove(14)) return;
      ssd_.Forget(block);
      --on_ssd_alone_;
      Drop(block);
    }
  }

  bool MakeRoom(uint64_t size) {
    for (int vain = 0; ram_.free() < size;) {
      const TraceBlock victim = ram_.Victim(uses_);
      const bool waits = ssd_.enabled() && vain < kVainRounds && !dirty_.empty() &&
                         (victim == kNoBlock ||
                          (ram_.IsRead(victim) && ram_.Spares() && !ram_.IsRead(dirty_.oldest())));
      if (waits) {
        // Where refusing leaves nothing that may go, the budget of writes is overdrawn.
        if (!Spill(ssd_.last_id(), /*insists=*/victim == kNoBlock && vain + 1 == kVainRounds))
          ++vain;
        continue;
      }
      if (victim == kNoBlock) return false;
      Evict(victim);
    }
    return true;
  }
  void Evict(TraceBlock block) {
    ram_.Evict(block);
    if (ssd_.Has(block)) {
      ++on_ssd_alone_;
    } else {
      Drop(block);
    }
  }
  void Drop(TraceBlock block) {
    ++drops_;
    if (ssd_.enabled()) of_ssd_[block].dropped = drops_;
  }

  // Requires: it was used just now.
  void SetDirty(TraceBlock block) {
    ram_.SetMayGo(block, false);
    dirty_.Touch(block);
  }
  void SetClean(TraceBlock block) {
    if (dirty_.Has(block)) dirty_.Remove(block);
    ram_.SetMayGo(block, true);
  }

  bool CleanBelow(uint64_t eighths) const {
    const uint64_t may_go = ram_.may_go() - std::min(ram_.may_go(), ram_.spared());
    return !dirty_.empty() && ram_.free() + may_go < ram_.capacity() / 8 * eighths;
  }
  void SpillAhead() {
    const uint64_t round_start = ssd_.last_id();
    while (Spill(round_start, /*insists=*/false) && CleanBelow(kGoOnEighths)) {
    }
  }

  // What is dirty of the path to `block` and of it, parents first, as far as it fits.
  bool PickChain(TraceBlock block, uint64_t most, std::vector<TraceBlock>* picked, uint64_t* size) {
    std::vector<TraceBlock> chain;
    for (; block != kNoBlock && ram_.Has(block); block = ram_.parent(block)) {
      if (dirty_.Has(block)) chain.push_back(block);
    }
    for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
      if (!picked->empty() && *size + SizeOf(*at) > most) return false;
      picked->push_back(*at);
      *size += SizeOf(*at);
      dirty_.Remove(*at);
    }
    return true;
  }
  std::vector<TraceBlock> PickColdest(uint64_t most) {
    std::vector<TraceBlock> picked;
    uint64_t size = 0;
    while (!dirty_.empty() && PickChain(dirty_.oldest(), most, &picked, &size)) {
    }
    return picked;
  }
  bool IsLikelyReused(TraceBlock block) const {
    const OfSsd& of = of_ssd_[block];
    return of.first_token < size_.ssd_shallow_tokens || ram_.IsRead(block) || of.was_ghost;
  }
  // Takes what the SSD does not want out of `blocks`; ancestors of what it wants stay.
  bool Refuse(Admission admission, std::vector<TraceBlock>* blocks) {
    std::vector<TraceBlock> admitted;
    absl::flat_hash_set<TraceBlock> needed;  // parents of these
    bool any = false;
    for (auto at = blocks->rbegin(); at != blocks->rend(); ++at) {
      const bool in =
          admission != Admission::kNothing && (IsLikelyReused(*at) || needed.contains(*at));
      if (in) {
        admitted.push_back(*at);
        needed.insert(ram_.parent(*at));
      } else {
        of_ssd_[*at].refused = any = true;
        ram_.SetMayGo(*at, true);
      }
    }
    *blocks = {admitted.rbegin(), admitted.rend()};
    return any;
  }
  // Returns the blocks of the leaving segments that were used since those were written, newest
  // first.
  std::vector<TraceBlock> PickRewrite(size_t leaving, uint64_t* size) const {
    std::vector<std::pair<uint64_t, TraceBlock>> hot;
    const uint64_t written = leaving == 0 ? 0 : ssd_.segment(leaving - 1).stamp;
    for (size_t i = 0; i < leaving; ++i) {
      for (const TraceBlock block : ssd_.segment(i).blocks) {
        if (ssd_.IsIn(block, ssd_.segment(i)) && ram_.stamp(block) > written) {
          hot.emplace_back(ram_.stamp(block), block);
        }
      }
    }
    std::ranges::sort(hot, std::greater<>());
    const uint64_t most =
        std::min(writes_.limited() ? writes_.left() : ~uint64_t{0}, ssd_.segment_size() / 4 * 3);
    std::vector<TraceBlock> picked;
    for (const auto& [stamp, block] : hot) {
      if (*size + SizeOf(block) > most) continue;
      *size += SizeOf(block);
      picked.push_back(block);
    }
    return picked;
  }

  // Writes one segment, or refuses blocks. False: neither.
  bool Spill(uint64_t round_start, bool insists) {
    const Admission admission = insists ? Admission::kAll : writes_.admits();
    if (admission == Admission::kNothing) {
      std::vector<TraceBlock> picked = PickColdest(ssd_.segment_size() / 4);
      return Refuse(admission, &picked);
    }
    uint64_t rewritten = 0;
    const size_t leaving = ssd_.CountLeaving(round_start);
    std::vector<TraceBlock> blocks = PickRewrite(leaving, &rewritten);
    std::vector<TraceBlock> dirty = PickColdest(ssd_.segment_size() - rewritten);
    bool refused = false;
    if (admission == Admission::kLikelyReuse) refused = Refuse(admission, &dirty);
    if (dirty.empty()) return refused;
    Write(std::move(dirty), std::move(blocks), leaving);
    return true;
  }
  void Write(std::vector<TraceBlock> dirty, std::vector<TraceBlock> again, size_t leaving) {
    // What was refused before and is continued by these is written with them.
    std::vector<TraceBlock> chained;
    for (const TraceBlock block : dirty) {
      for (TraceBlock up = ram_.parent(block);
           up != kNoBlock && ram_.Has(up) && of_ssd_[up].refused; up = ram_.parent(up)) {
        of_ssd_[up].refused = false;
        chained.push_back(up);
      }
    }
    std::vector<TraceBlock> blocks = std::move(again);
    blocks.insert(blocks.end(), chained.begin(), chained.end());
    blocks.insert(blocks.end(), dirty.begin(), dirty.end());
    uint64_t size = 0;
    for (const TraceBlock block : blocks) size += SizeOf(block);
    for (const TraceBlock block : blocks) {
      if (ram_.Has(block)) SetClean(block);
    }
    writes_.Take(size);
    ssd_.Write(std::move(blocks), size, ram_.newest_stamp());
    for (size_t i = 0; i < leaving; ++i) Leave();
    while (!ssd_.HasRoom(0) && !ssd_.empty()) Leave();
  }
  // What is in RAM has no other copy now: it is dirty again, as cold as it was.
  void Leave() {
    std::vector<TraceBlock> in_ram;
    for (const TraceBlock block : ssd_.PopOldest().blocks) {
      if (ram_.Has(block)) {
        in_ram.push_back(block);
        ram_.SetMayGo(block, false);
      } else {
        --on_ssd_alone_;
        Drop(block);
      }
    }
    std::ranges::sort(in_ram, {}, [this](TraceBlock block) { return ram_.stamp(block); });
    dirty_.Merge(in_ram, ram_);
  }

  const Trace& trace_;
  const CacheSize size_;
  uint64_t index_share_;
  SimulatedRam ram_;
  SimulatedSsd ssd_;
  SimulatedWrites writes_;
  std::vector<OfSsd> of_ssd_;
  DirtyOrder dirty_;
  uint64_t uses_ = 0, drops_ = 0, on_ssd_alone_ = 0;
};

}  // namespace

Hits Simulate(const Trace& trace, const CacheSize& size) {
  Cache cache(trace, size);
  Hits hits;
  for (const Trace::Request& request : trace.requests) {
    hits.requested_tokens += request.tokens;
    cache.Play(request, &hits);
  }
  hits.ssd_written_tokens = cache.written() * trace.block_tokens / kQuarters;
  return hits;
}

Hits HitsOfAll(const Trace& trace) {
  std::vector<bool> seen(trace.unique);
  Hits hits;
  for (const Trace::Request& request : trace.requests) {
    hits.requested_tokens += request.tokens;
    for (const TraceBlock block : trace.blocks(request)) {
      if (seen[block]) hits.ram_tokens += trace.block_sizes[block];
      seen[block] = true;
    }
  }
  return hits;
}

}  // namespace prefixd::sizing
