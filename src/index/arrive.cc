// Blocks of other hosts enter the tree while their pages are on the way, so that whoever asks
// meanwhile leases them too and waits for the one who brings them; and blocks of this one are held
// while they are copied out.
#include <algorithm>
#include <utility>

#include "index/impl.h"

namespace prefixd::index {
namespace {

// Pages in order of group and rung, of which a block may have each once.
bool Fits(Space& space, const PrefixIndex::ArrivingBlock& block) {
  const uint32_t tokens = space.shape.block_tokens;
  const auto may_be = [&](const PrefixIndex::ArrivingPage& page) {
    return space.shape.Has(page.group, page.rung, tokens) &&
           space.sizes.NumberOf({page.page_bytes, page.payload_bytes}).has_value();
  };
  const auto may_end = [tokens](uint32_t end) { return end >= 1 && end <= tokens; };
  return std::ranges::all_of(block.pages, may_be) && std::ranges::all_of(block.ends, may_end);
}

// Returns the block that ends where block `index` of the request begins, the root for 0, or nullptr
// if it is not in the tree.
Node* BlockBefore(Space& space, const block::SequenceView& request, uint32_t index) {
  const uint32_t block_tokens = space.shape.block_tokens;
  if (uint64_t{index} * block_tokens > request.tokens.size()) return nullptr;
  Node* node = &space.root;
  for (uint32_t block = 0; node != nullptr && block < index; ++block) {
    const Slice tokens(request, block * block_tokens, (block + 1) * block_tokens);
    node = ExactChild(*node, tokens.view());
  }
  return node;
}

}  // namespace

Node* PrefixIndex::Impl::BlockFor(Node& parent, const block::SequenceView& tokens, size_t pages) {
  Node* const there = ExactChild(parent, tokens);
  if (there != nullptr) {
    if (!AnyPresent(*there)) there->was_ghost = true;  // it was given up and comes back
    return there;
  }
  if (MemoryBytes() + by_serial.GrowthBytes() >= limits.memory_limit_bytes) return nullptr;
  return InsertChild(parent, tokens, Hash(parent.hash, tokens), 0, pages);
}

void PrefixIndex::Impl::Expect(Node& node, const ArrivingBlock& block,
                               std::vector<PageInfo>& expected) {
  const Change change(*this, node);
  if (!AnyPresent(node)) node.touches = 0;
  for (const ArrivingPage& page : block.pages) {
    const Page* const there = FindPage(node, page.group, page.rung);
    if (there != nullptr && Present(*there)) continue;
    Page& slot = SlotFor(node, page.group, page.rung);
    slot.set_sizes(*node.space()->sizes.NumberOf({page.page_bytes, page.payload_bytes}));
    slot.check = 0;
    slot.set_state(PageState::kPromoting);
    ++node.pins;  // the session may end while the page travels
    expected.push_back(InfoOf(node, slot));
  }
  SetStamp(node, NewStamp());
}

std::vector<PageInfo> PrefixIndex::AddArriving(block::SpaceHandle handle,
                                               const block::SequenceView& request,
                                               uint32_t first_block,
                                               std::span<const ArrivingBlock> blocks) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PageInfo> expected;
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) return expected;
  const uint32_t block_tokens = space->shape.block_tokens;
  const auto slice = [&](uint32_t block) {
    return Slice(request, block * block_tokens, (block + 1) * block_tokens);
  };
  const size_t whole = request.tokens.size() / block_tokens;
  Node* parent = BlockBefore(*space, request, first_block);
  if (parent == nullptr) return expected;
  for (uint32_t i = 0; i < blocks.size() && first_block + i < whole; ++i) {
    const ArrivingBlock& arriving = blocks[i];
    Node* const node =
        Fits(*space, arriving)
            ? impl_->BlockFor(*parent, slice(first_block + i).view(), arriving.pages.size())
            : nullptr;
    if (node == nullptr) break;
    impl_->Expect(*node, arriving, expected);
    for (const uint32_t end : arriving.ends) {
      Node* const first = FirstExtending(*node->parent(), Head(node->view(), end));
      if (first != nullptr) impl_->SetEnd(*first, end);
    }
    parent = node;
  }
  impl_->Settle(parent);  // blocks of which no page is on the way
  return expected;
}

bool PrefixIndex::FinishArrival(const PageRef& ref, uint64_t check, block::Extent extent,
                                block::PageMarks* marks) {
  const base::MutexLock lock(impl_->mutex);
  if (ref.node->space()->shape.IsState(ref.group) && !impl_->MakeSnapshotRoom(extent.bytes)) {
    return false;
  }
  Page* const page = impl_->Resolve(ref);
  {
    const Impl::Change change(*impl_, *ref.node);
    page->check = check;
    impl_->PutInRam(*ref.node, *page, extent, marks);
    page->set_state(PageState::kRam);
    ref.node->refused = false;
    --ref.node->pins;
  }
  // The shorter siblings stay until what takes their place is there.
  if (impl_->Settle(ref.node) == ref.node && CountPages(*ref.node).busy == 0) {
    impl_->SupersedePrefixes(*ref.node);
  }
  impl_->promoted.NotifyAll();
  return true;
}

Acquired PrefixIndex::LeaseBlock(block::SpaceHandle handle, const block::SequenceView& request,
                                 uint32_t block_index, block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  Acquired acquired;
  Space* const space = impl_->FindSpace(handle);
  Node* const node = space == nullptr ? nullptr : BlockBefore(*space, request, block_index + 1);
  if (node == nullptr) return acquired;
  RestorablePath path;
  for (Page& page : node->pages()) {
    if (!InRam(page.state())) continue;
    path.pages.push_back(&page);
    acquired.pages.push_back(InfoOf(*node, page));
  }
  if (path.pages.empty()) return acquired;
  path.blocks.push_back(node);
  Lease lease{.session = session,
              .space = space,
              .usable = {},
              .from = node->first_token(),
              .tokens = node->first_token() + node->size()};
  acquired.from_token = lease.from;
  acquired.answer.restorable_tokens = lease.tokens;
  impl_->Hold(lease, path, lease.tokens);
  acquired.lease = impl_->AddLease(std::move(lease));
  return acquired;
}

}  // namespace prefixd::index
