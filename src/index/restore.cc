// Restore: blocks read back from their records.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {
namespace {

absl::Status CheckShape(Space& space, const RestoredBlock& block) {
  const SpaceShape& shape = space.shape;
  const size_t size = block.tokens.size();
  if (size == 0 || size > shape.block_tokens) {
    return absl::DataLossError(
        absl::StrCat("record: ", size, " tokens, limit ", shape.block_tokens));
  }
  if (!block::ValidateContent({block.tokens, block.content}).ok()) {
    return absl::DataLossError("record: content keys do not fit its tokens");
  }
  for (const uint32_t end : block.ends) {
    if (end == 0 || end > size) {
      return absl::DataLossError(absl::StrCat("record: end at ", end, " of ", size, " tokens"));
    }
  }
  for (const RestoredPage& page : block.pages) {
    const size_t tokens = shape.IsState(page.group) ? page.rung : size;
    if (!shape.Has(page.group, page.rung, static_cast<uint32_t>(size)) || page.tokens != tokens ||
        page.ssd_sequence == 0) {
      return absl::DataLossError(absl::StrCat("record: page of group ", page.group, " rung ",
                                              page.rung, " with ", page.tokens, " tokens at ",
                                              page.ssd_sequence, ", block has ", size));
    }
    if (!space.sizes.NumberOf({page.page_bytes, page.payload_bytes})) return TooManySizes();
  }
  return absl::OkStatus();
}

Page ToPage(Space& space, const RestoredPage& restored) {
  Page page(restored.group, restored.rung);
  page.check = restored.check;
  page.set_ssd_sequence(restored.ssd_sequence);
  page.set_sizes(*space.sizes.NumberOf({restored.page_bytes, restored.payload_bytes}));
  return page;
}

// Returns a longer sibling that has all pages of the record, snapshots not counted, or nullptr.
Node* Covering(const Node& parent, const RestoredBlock& block) {
  ByShared siblings(parent, {block.tokens, block.content});
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < block.tokens.size()) return nullptr;
    if (sibling->node->size() == block.tokens.size()) continue;
    if (std::all_of(block.pages.begin(), block.pages.end(), [&](const RestoredPage& page) {
          if (sibling->node->space()->shape.IsState(page.group)) return true;
          const Page* const there = FindPage(*sibling->node, page.group, page.rung);
          return there != nullptr && Present(*there);
        })) {
      return sibling->node;
    }
  }
  return nullptr;
}

}  // namespace

Node* PrefixIndex::Impl::FindSerial(uint64_t serial) const {
  if (Node* const node = by_serial.Find(serial); node != nullptr) return node;
  const auto other = other_serials.find(serial);
  if (other == other_serials.end()) return nullptr;
  Node* const node = nodes.Find(other->second);
  return node != nullptr && node->in_tree ? node : nullptr;
}

absl::StatusOr<Node*> PrefixIndex::Impl::ParentBySerial(Space& space, uint64_t serial) const {
  if (serial == 0) return &space.root;
  Node* const parent = FindSerial(serial);
  if (parent == nullptr) return absl::NotFoundError("record: its parent is not in the tree");
  if (parent->space() == &space) return parent;
  return absl::DataLossError("record: its parent is of another space");
}

void PrefixIndex::Impl::AddSerial(Node& node, uint64_t serial) {
  const Change change(*this, node);
  if (serial == 0 || serial == node.serial()) return;
  other_serials.insert_or_assign(serial, node.id());
  if (node.AddSerial(serial)) node.record_wanted |= node.record_written;  // its record lacks it
}

void PrefixIndex::Impl::AddRestoredPages(Node& node, const RestoredBlock& block, bool states_only) {
  for (const RestoredPage& restored : block.pages) {
    if (states_only && !node.space()->shape.IsState(restored.group)) continue;
    Page* const there = FindPage(node, restored.group, restored.rung);
    if (there == nullptr) {
      SlotFor(node, restored.group, restored.rung) = ToPage(*node.space(), restored);
    } else if (there->state() == PageState::kUnverified) {
      // The page was adopted first. With the same check the record's copy has the same bytes.
      if (there->check == restored.check && there->ssd_sequence() < restored.ssd_sequence) {
        there->set_ssd_sequence(restored.ssd_sequence);
      }
    } else if (loading && there->state() == PageState::kRam && there->check == restored.check) {
      there->set_state(PageState::kRamAndSsd);  // stored anew while the index was loaded
      there->set_ssd_sequence(restored.ssd_sequence);
    } else if (there->holders() == 0 &&
               (there->state() == PageState::kGone ||
                (there->state() == PageState::kSsd &&
                 std::pair(there->ssd_sequence(), node.record_sequence()) <
                     std::pair(restored.ssd_sequence, block.record_sequence)))) {
      there->Reset();
      // The newer copy replaced a bad one; the newer record knows better.
      *there = ToPage(*node.space(), restored);
    }
  }
}

void PrefixIndex::Impl::SetRecord(Node& node, const RestoredBlock& block) {
  if (block.record_sequence < node.record_sequence()) return;
  node.record_written = true;
  node.set_record_sequence(block.record_sequence);
  EndSet said = node.record_ends();
  for (const uint32_t end : block.ends) said.set(end - 1);
  node.set_record_ends(said);
}

absl::Status PrefixIndex::Restore(block::SpaceHandle handle, const RestoredBlock& block) {
  const base::MutexLock lock(impl_->mutex);
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("restore: unknown space ", handle.value));
  }
  if (absl::Status fits = CheckShape(*space, block); !fits.ok()) return fits;
  const block::SequenceView tokens{block.tokens, block.content};
  auto found = impl_->ParentBySerial(*space, block.serials.parent);
  if (!found.ok()) return found.status();
  Node& parent = **found;
  if (impl_->Hash(parent.hash, tokens) != block.hash) {
    return absl::DataLossError("record: its hash is not the hash of its parent and tokens");
  }
  Node* node = ExactChild(parent, tokens);
  const bool full = block.tokens.size() == space->shape.block_tokens;
  if (Node* const same = full ? impl_->FindSerial(block.serials.own) : nullptr;
      full && (block.serials.own == 0 || (same != nullptr && same != node))) {
    return absl::DataLossError("record: another block has its serial");
  }
  Node* const covering = node != nullptr || full ? nullptr : Covering(parent, block);
  if (covering != nullptr) {
    const Impl::Change change(*impl_, *covering);
    impl_->AddRestoredPages(*covering, block, true);
  } else if (node != nullptr || full || !block.pages.empty()) {
    const bool inserted = node == nullptr;
    if (inserted) {
      node = impl_->InsertChild(parent, tokens, block.hash, block.serials.own, block.pages.size());
    }
    if (full) {
      for (const uint64_t serial : block.other_serials) impl_->AddSerial(*node, serial);
    }
    {
      const Impl::Change change(*impl_, *node);
      if (block.last_use > 0 && (inserted || block.last_use > node->stamp)) {
        impl_->SetStamp(*node, block.last_use);
        impl_->StampFrom(block.last_use + 1);
      }
      impl_->AddRestoredPages(*node, block, false);
      impl_->SetRecord(*node, block);
    }
    if (full) impl_->AddSerial(*node, block.serials.own);
    impl_->SupersedePrefixes(*node);
  }
  for (const uint32_t end : block.ends) {
    if (Node* const first = FirstExtending(parent, Head(tokens, end))) impl_->SetEnd(*first, end);
  }
  return absl::OkStatus();
}

void PrefixIndex::Impl::StampFrom(int64_t from) {
  if (from <= next_stamp) return;
  next_stamp = from;
  ages.ForgetStamps();
}

void PrefixIndex::StampFrom(int64_t stamp) {
  const base::MutexLock lock(impl_->mutex);
  impl_->StampFrom(stamp);
}

void PrefixIndex::BeginLoading() {
  const base::MutexLock lock(impl_->mutex);
  impl_->loading = true;
}

void PrefixIndex::PruneHoles() {
  impl_->EndAdoption();
  decltype(impl_->other_serials) gone;  // freed outside the lock
  {
    const base::MutexLock lock(impl_->mutex);
    impl_->loading = false;
    std::swap(gone, impl_->other_serials);
  }
  std::vector<Impl::FoundBlock> leaves = impl_->FindInSteps([](const Node& node) {
    return node.in_tree && node.pages().empty() && node.children().empty();
  });
  impl_->SettleDeepestFirst(&leaves);
}

}  // namespace prefixd::index
