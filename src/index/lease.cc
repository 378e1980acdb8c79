// Holding, shrinking, releasing: which lease holds which pages, and how the pages' marks show it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {

void PrefixIndex::Impl::AddSums(const LeasedSums& sums) {
  if (sums.space == nullptr) return;
  for (Totals* const of : {&totals, &sums.space->totals}) {
    of->leased_bytes += sums.leased_bytes;
    of->kept_bytes += sums.kept_bytes;
    of->clean_bytes += sums.clean_bytes;
    of->memory_bytes += sums.memory_bytes;
    of->read_again_extents += sums.read_again_extents;
  }
}

void PrefixIndex::Impl::Touch(Node& node, LeasedSums& sums) {
  if (node.touches == kManyTouches) return;
  if (!node.read_again()) {
    eviction->Put(node, EvictPlace::kNone);
    sums.space = node.space();
    for (const Page& page : node.pages()) {
      if (node.in_tree && Present(page)) sums.read_again_extents += page.extent().bytes;
    }
  }
  ++node.touches;
}

void PrefixIndex::Impl::Mark(PageUse& use, uint64_t slot, int64_t now) {
  const uint64_t slots = use.slots | slot;
  const bool changed = std::exchange(use.slots, slots) != slots;
  if (use.marks == nullptr) return;
  if (changed) use.marks->SetHolders(slots);
  std::atomic<int64_t>& last_use = use.marks->last_use;
  if (IsAnotherUse(last_use.load(std::memory_order_relaxed), now))
    last_use.store(now, std::memory_order_relaxed);
}

void PrefixIndex::Impl::TakePage(HeldPath& held, uint32_t slot, Node& node, Page& page, int64_t now,
                                 LeasedSums& sums) {
  sums.memory_bytes -= page.UseBytes();
  PageUse& use = page.Use();
  sums.memory_bytes += page.UseBytes();
  if (use.holders++ == 0) sums.Add(node, page);
  ++node.pins;
  Mark(use, BitOf(slot), now);
  held.pages.push_back({&node, node.first_token(), page.group(), page.rung(), BytesOf(node, page)});
  held.charge += held.pages.back().charge;
}

bool PrefixIndex::Impl::DropPage(const HeldPage& held, LeasedSums& sums) {
  Node& node = *held.node;
  Page& page = *FindPage(node, held.group, held.rung);
  --node.pins;
  PageUse& use = page.Use();
  if (--use.holders > 0) return true;
  sums.Remove(node, page);
  if (std::exchange(use.slots, 0) != 0 && use.marks != nullptr) use.marks->SetHolders(0);
  if (!use.condemned) {
    sums.memory_bytes -= page.UseBytes();
    page.Fold();
    sums.memory_bytes += page.UseBytes();
    return Present(page);
  }
  use.condemned = false;
  std::erase_if(condemned, [&](const Condemned& copy) {
    if (copy.node != &node || copy.group != page.group() || copy.rung != page.rung()) return false;
    Free(copy.extent);
    return true;
  });
  return Present(page);
}

void PrefixIndex::Impl::ReadBlock(Node& node, int64_t stamp, Ages::Counting& read,
                                  LeasedSums& sums) {
  read.Add(node, stamp);
  Touch(node, sums);
  if (node.refused) Admit(node);
}

void PrefixIndex::Impl::Hold(Lease& lease, const RestorablePath& path, uint32_t tokens) {
  lease.held = std::make_shared<HeldPath>();
  if (path.blocks.empty()) return;
  if (lease.usable.regular) lease.held->pages.reserve(path.pages.size());
  const size_t groups = path.pages.size() / path.blocks.size();
  const int64_t now = base::SystemClock::Get().UnixMicros();
  LeasedSums sums;
  Ages::Counting read = CountRead();
  const size_t ahead = std::min(kMarksAhead, path.pages.size());
  for (size_t i = 0; i < ahead; ++i) {
    if (path.pages[i] != nullptr) path.pages[i]->AskForMarks();
  }
  for (size_t i = 0; i < path.blocks.size() && path.blocks[i]->first_token() < tokens; ++i) {
    Node& node = *path.blocks[i];
    bool taken = false;
    for (size_t group = 0; group < groups; ++group) {
      const size_t at = i * groups + group;
      const Page* const later = at + ahead < path.pages.size() ? path.pages[at + ahead] : nullptr;
      if (later != nullptr) later->AskForMarks();
      if (path.pages[at] == nullptr) continue;
      TakePage(*lease.held, lease.slot, node, *path.pages[at], now, sums);
      taken = true;
    }
    if (taken && lease.reads) ReadBlock(node, node.stamp, read, sums);
  }
  AddSums(sums);
}

block::LeaseId PrefixIndex::Impl::AddLease(Lease lease) {
  const block::LeaseId id{next_id++};
  Session& session = sessions[lease.session];
  session.leased_bytes += lease.held->charge;
  ++session.leases;
  if (lease.space != nullptr) ++lease.space->leases;
  table_bytes += MemoryOf(lease) + (lease.shares() ? 0 : MemoryOf(*lease.held));
  leases.emplace(id, std::move(lease));
  return id;
}

void PrefixIndex::Impl::DropPages(std::span<const HeldPage> pages) {
  // Leaf first, as in StampPath, so that what comes last in a sequence is evicted first.
  LeasedSums sums;
  for (size_t end = pages.size(); end > 0;) {
    Node* const node = pages[end - 1].node;
    if (sums.space != node->space()) {
      AddSums(sums);
      sums = {};
    }
    bool there = true;
    for (; end > 0 && pages[end - 1].node == node; --end) {
      there &= DropPage(pages[end - 1], sums);
    }
    if (!there || !node->in_tree) {
      Settle(node);
    } else {
      // Holders matter to the order of eviction alone, and a parent of blocks in RAM is not in it.
      if (!node->space()->regular || node->children().ram() == 0) Reorder(*node);
      Merge(*node);
    }
  }
  AddSums(sums);
}

void PrefixIndex::Impl::LetGo(Lease& lease) {
  const std::shared_ptr<HeldPath> held = std::exchange(lease.held, nullptr);
  sessions[lease.session].leased_bytes -= held->charge;
  if (held.use_count() > 1) return;
  EndSharing(*held);
  table_bytes -= MemoryOf(*held);
  DropPages(held->pages);
}

void PrefixIndex::Impl::GiveUp(Lease& lease, uint32_t tokens) {
  lease.tokens = std::min(lease.tokens, tokens);
  const auto first =
      std::partition_point(lease.pages().begin(), lease.pages().end(),
                           [&](const HeldPage& held) { return held.first_token < tokens; });
  if (first == lease.pages().end()) return;
  // Other leases may share the pages: the lease takes what it keeps once more, then lets all go.
  const auto kept = std::make_shared<HeldPath>();
  kept->pages.assign(lease.pages().begin(), first);
  for (const HeldPage& held : kept->pages) {
    ++FindPage(*held.node, held.group, held.rung)->Use().holders;
    ++held.node->pins;
    kept->charge += held.charge;
  }
  LetGo(lease);
  lease.held = kept;
  sessions[lease.session].leased_bytes += kept->charge;
  table_bytes += MemoryOf(*kept);
}

absl::Status PrefixIndex::Impl::EndLease(block::LeaseId id) {
  const auto it = leases.find(id);
  if (it == leases.end()) {
    return absl::NotFoundError(absl::StrCat("lease ", id.value, ": unknown or released"));
  }
  Lease& lease = it->second;
  LetGo(lease);
  table_bytes -= MemoryOf(lease);
  const auto session = sessions.find(lease.session);
  --session->second.leases;
  if (session->second.empty()) sessions.erase(session);
  if (lease.space != nullptr) --lease.space->leases;
  leases.erase(it);
  return absl::OkStatus();
}

absl::Status PrefixIndex::ShrinkLease(block::LeaseId lease, uint32_t tokens) {
  const base::MutexLock lock(impl_->mutex);
  const auto it = impl_->leases.find(lease);
  if (it == impl_->leases.end()) {
    return absl::NotFoundError(absl::StrCat("lease ", lease.value, ": unknown or released"));
  }
  impl_->GiveUp(it->second, tokens);
  return absl::OkStatus();
}

absl::Status PrefixIndex::Release(block::LeaseId lease) {
  absl::Status status;
  impl_->combiner.Run([&]() PREFIXD_REQUIRES(impl_->mutex) { status = impl_->EndLease(lease); });
  return status;
}

std::vector<block::LeaseInfo> PrefixIndex::ListLeases() const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<block::LeaseInfo> list;
  for (const auto& [id, lease] : impl_->leases) {
    block::LeaseInfo info{.lease = id, .session = lease.session, .tokens = lease.tokens};
    if (lease.space != nullptr) info.space = lease.space->shape.id;
    info.pages = lease.pages().size();
    info.bytes = lease.held->charge;
    list.push_back(info);
  }
  std::sort(list.begin(), list.end(),
            [](const auto& a, const auto& b) { return a.lease.value < b.lease.value; });
  return list;
}

}  // namespace prefixd::index
