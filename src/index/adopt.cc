// Adopt: pages that an earlier daemon left in the arena, and leases of the sessions that still read
// them.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {
namespace {

absl::Status CheckShape(Space& space, const AdoptedPage& adopted) {
  const SpaceShape& shape = space.shape;
  const size_t size = adopted.tokens.size();
  if (size == 0 || size > shape.block_tokens) {
    return absl::DataLossError(
        absl::StrCat("adopt: ", size, " tokens, limit ", shape.block_tokens));
  }
  if (!block::ValidateContent({adopted.tokens, adopted.content}).ok()) {
    return absl::DataLossError("adopt: content keys do not fit the tokens");
  }
  for (const uint32_t end : adopted.ends) {
    if (end == 0 || end > size) {
      return absl::DataLossError(absl::StrCat("adopt: end at ", end, " of ", size, " tokens"));
    }
  }
  const NewPage& page = adopted.page;
  const bool snapshot = shape.IsState(page.group);
  if (!shape.Has(page.group, page.rung, static_cast<uint32_t>(size)) || !page.extent ||
      (snapshot && page.rung != size)) {
    return absl::DataLossError(absl::StrCat("adopt: page of group ", page.group, " rung ",
                                            page.rung, " in an extent of ", page.extent.bytes,
                                            " bytes"));
  }
  if (!space.sizes.NumberOf({page.page_bytes, page.payload_bytes})) return TooManySizes();
  return absl::OkStatus();
}

// Returns whether a longer sibling has the page, so that the block's own is not needed.
bool IsCovered(const Node& parent, const block::SequenceView& tokens, const NewPage& page) {
  ByShared siblings(parent, tokens);
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < tokens.tokens.size()) return false;
    if (sibling->node->size() == tokens.tokens.size()) continue;
    const Page* const there = FindPage(*sibling->node, page.group, page.rung);
    if (there != nullptr && Present(*there)) return true;
  }
  return false;
}

// Returns the block, or nullptr, to put a snapshot of these tokens at: of those that begin with the
// tokens the one with the most pages.
Node* AnyExtending(const Node& parent, const block::SequenceView& tokens) {
  Node* found = nullptr;
  ByShared siblings(parent, tokens);
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < tokens.tokens.size()) break;
    if (found == nullptr || CountPages(*sibling->node).present > CountPages(*found).present)
      found = sibling->node;
  }
  return found;
}

}  // namespace

Page& PrefixIndex::Impl::AddAdoptedPage(Node& node, const NewPage& page) {
  const Change change(*this, node);
  Page& slot = SlotFor(node, page.group, page.rung);
  // A copy on SSD with another check is an older page; this one was not written yet.
  const bool same = slot.state() == PageState::kSsd && slot.check == page.check;
  if (!same) slot.set_ssd_sequence(0);
  slot.set_state(PageState::kUnverified);
  slot.set_extent(page.extent);
  slot.check = page.check;
  slot.set_sizes(*node.space()->sizes.NumberOf({page.page_bytes, page.payload_bytes}));
  slot.Use().marks = page.marks;
  return slot;
}

absl::StatusOr<PageRef> PrefixIndex::Adopt(block::SpaceHandle handle, const AdoptedPage& adopted) {
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("adopt: unknown space ", handle.value));
  }
  if (absl::Status fits = CheckShape(*space, adopted); !fits.ok()) return fits;
  const block::SequenceView tokens{adopted.tokens, adopted.content};
  auto found = impl_->ParentBySerial(*space, adopted.serials.parent);
  if (!found.ok()) return found.status();
  Node& parent = **found;
  if (impl_->Hash(parent.hash, tokens) != adopted.name.hash) {
    return absl::DataLossError("adopt: its hash is not that of its parent and tokens");
  }
  if (adopted.first_token != parent.first_token() + parent.size()) {
    return absl::DataLossError(absl::StrCat("adopt: at token ", adopted.first_token,
                                            ", its parent ends at ",
                                            parent.first_token() + parent.size()));
  }
  const bool snapshot = space->shape.IsState(adopted.page.group);
  const uint64_t taken = impl_->totals.snapshot_extents + adopted.page.extent.bytes;
  if (snapshot && taken > impl_->limits.snapshot_bytes) {
    return absl::ResourceExhaustedError("adopt: snapshots take their share already");
  }
  if (Node* const same = impl_->FindSerial(adopted.serials.own);
      same != nullptr && same != ExactChild(parent, tokens)) {
    return absl::DataLossError("adopt: another block has its serial");
  }
  Node* node = snapshot ? AnyExtending(parent, tokens) : ExactChild(parent, tokens);
  const Page* const there =
      node == nullptr ? nullptr : FindPage(*node, adopted.page.group, adopted.page.rung);
  const bool needed = (there == nullptr || there->state() == PageState::kGone ||
                       there->state() == PageState::kSsd) &&
                      !IsCovered(parent, tokens, adopted.page);
  if (needed && node == nullptr) {
    node = impl_->InsertChild(parent, tokens, adopted.name.hash, adopted.serials.own, 1);
  }
  if (node != nullptr && tokens.tokens.size() == space->shape.block_tokens) {
    impl_->AddSerial(*node, adopted.serials.own);
  }
  for (const uint32_t end : adopted.ends) {
    if (Node* const first = FirstExtending(parent, Head(tokens, end))) impl_->SetEnd(*first, end);
  }
  if (!needed) return absl::AlreadyExistsError("adopt: the tree has the page");
  impl_->adopting = true;
  Page& page = impl_->AddAdoptedPage(*node, adopted.page);
  const PageRef ref = InfoOf(*node, page).ref;
  impl_->adopted_uses.push_back({ref, adopted.last_use});
  block::PageMarks* const marks = page.marks();
  const uint64_t readers = marks == nullptr ? 0 : marks->ReadHolders();
  page.Use().slots |= readers;
  WriteMarks(*node, page, adopted.last_use);
  // Its readers may be gone or not. The page is held until that is known.
  LeasedSums sums;
  if (readers != 0)
    Impl::TakePage(impl_->adoption, block::kNoSlot, *node, page, adopted.last_use, sums);
  impl_->AddSums(sums);
  impl_->Reorder(*node);
  impl_->SupersedePrefixes(*node);
  return ref;
}

block::LeaseId PrefixIndex::AdoptLease(block::SessionId session, uint32_t slot,
                                       std::span<const PageRef> pages) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PageRef> refs(pages.begin(), pages.end());
  std::erase_if(refs, [&](const PageRef& ref) {
    const Page* const page = impl_->Resolve(ref);
    return page == nullptr || !page->has_extent();
  });
  if (refs.empty()) return {};
  std::sort(refs.begin(), refs.end(), [](const PageRef& a, const PageRef& b) {
    return std::tuple(a.node->first_token(), a.node_id, a.group, a.rung) <
           std::tuple(b.node->first_token(), b.node_id, b.group, b.rung);
  });
  refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
  Lease lease{.session = session, .slot = slot, .space = refs.front().node->space(), .usable = {}};
  lease.held = std::make_shared<HeldPath>();
  const int64_t now = base::SystemClock::Get().UnixMicros();
  for (const PageRef& ref : refs) {
    LeasedSums sums;
    Impl::TakePage(*lease.held, slot, *ref.node, *impl_->Resolve(ref), now, sums);
    impl_->AddSums(sums);
    impl_->Reorder(*ref.node);
  }
  return impl_->AddLease(std::move(lease));
}

std::vector<PageInfo> PrefixIndex::Unverified(size_t limit) const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PageInfo> list;
  for (auto it = impl_->unverified_order.rbegin();
       it != impl_->unverified_order.rend() && list.size() < limit; ++it) {
    for (const Page& page : it->node->pages()) {
      if (page.state() != PageState::kUnverified || list.size() == limit) continue;
      list.push_back(InfoOf(*it->node, page));
    }
  }
  return list;
}

void PrefixIndex::Impl::EndAdoption() {
  struct Used : BlockRef {
    int64_t last_use = 0;
    uint32_t first_token = 0;
  };
  std::vector<AdoptedUse> adopted;
  std::vector<HeldPage> held;
  {
    const base::MutexLock lock(mutex);
    adopting = false;
    std::swap(adopted, adopted_uses);
    std::swap(held, adoption.pages);
  }
  // A block counts as used when a block below it was used: carry each use upwards.
  absl::flat_hash_map<uint64_t, Used> uses;
  InSteps(std::span<const AdoptedUse>(adopted), [&](const AdoptedUse& one) {
    if (Resolve(one.ref) == nullptr || !one.ref.node->in_tree) return;
    for (Node* node = one.ref.node; !node->is_root(); node = node->parent()) {
      Used& used = uses[node->id()];
      if (used.node != nullptr && used.last_use >= one.last_use) break;
      used = {{node, node->id()}, one.last_use, node->first_token()};
    }
  });
  std::vector<Used> order;
  for (const auto& [id, used] : uses) order.push_back(used);
  std::ranges::sort(order, [](const Used& a, const Used& b) {
    return std::tuple(a.last_use, b.first_token, a.node_id) <
           std::tuple(b.last_use, a.first_token, b.node_id);
  });
  ForEachInSteps(order, [&](Node& node) PREFIXD_REQUIRES(mutex) {
    SetStamp(node, next_stamp++);
    Reorder(node);
  });
  // Blocks that an earlier adoption left unverified may be given up again.
  ForEachInSteps([&](Node& node) PREFIXD_REQUIRES(mutex) {
    if (node.in_unverified_order) Reorder(node);
  });
  {
    const base::MutexLock lock(mutex);
    ages.ForgetStamps();  // adopted blocks were used before this daemon began
  }
  InSteps(std::span<const HeldPage>(held), [&](const HeldPage& page) PREFIXD_REQUIRES(mutex) {
    DropPages({&page, 1});
  });
}

}  // namespace prefixd::index
