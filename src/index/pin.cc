// Pins: blocks whose pages stay until Unpin or Clear, whether a lease holds them or not.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {

absl::StatusOr<block::PinId> PrefixIndex::Pin(block::LeaseId id, uint32_t tokens) {
  const base::MutexLock lock(impl_->mutex);
  const auto found = impl_->leases.find(id);
  if (found == impl_->leases.end()) {
    return absl::NotFoundError(absl::StrCat("pin: lease ", id.value, ": unknown or released"));
  }
  const Lease& lease = found->second;
  PinnedPath pin{.session = lease.session,
                 .space = lease.space,
                 .tokens = std::min(tokens, lease.tokens),
                 .nodes = {}};
  for (const HeldPage& held : lease.pages()) {
    if (held.first_token >= pin.tokens) break;
    if (!held.node->in_tree) {
      return absl::FailedPreconditionError(
          absl::StrCat("pin: lease ", id.value, ": a block left the tree"));
    }
    pin.charge += held.charge;
    if (pin.nodes.empty() || pin.nodes.back() != held.node) pin.nodes.push_back(held.node);
  }
  for (Node* const node : pin.nodes) {
    const Impl::Change change(*impl_, *node);
    ++node->rare().pinned;
    ++node->pins;
    node->refused = false;
  }
  Session& session = impl_->sessions[pin.session];
  ++session.pins;
  session.pinned_bytes += pin.charge;
  impl_->table_bytes += MemoryOf(pin);
  const block::PinId pin_id{impl_->next_id++};
  impl_->pins.emplace(pin_id, std::move(pin));
  return pin_id;
}

void PrefixIndex::Impl::EndPin(block::PinId id) {
  const auto it = pins.find(id);
  const PinnedPath pin = std::move(it->second);
  pins.erase(it);
  table_bytes -= MemoryOf(pin);
  const auto session = sessions.find(pin.session);
  --session->second.pins;
  session->second.pinned_bytes -= pin.charge;
  if (session->second.empty()) sessions.erase(session);
  // Leaf first, so that pruning a block never removes its parent before the parent's turn.
  for (auto node = pin.nodes.rbegin(); node != pin.nodes.rend(); ++node) {
    {
      const Change change(*this, **node);
      --(*node)->rare().pinned;
      --(*node)->pins;
    }
    Settle(*node);
  }
}

absl::Status PrefixIndex::Unpin(block::PinId id) {
  const base::MutexLock lock(impl_->mutex);
  if (!impl_->pins.contains(id)) {
    return absl::NotFoundError(absl::StrCat("unpin: no pin ", id.value));
  }
  impl_->EndPin(id);
  return absl::OkStatus();
}

void PrefixIndex::Impl::EndPinsOf(const Space& space) {
  std::vector<block::PinId> ended;
  for (const auto& [id, pin] : pins) {
    if (pin.space == &space) ended.push_back(id);
  }
  for (const block::PinId id : ended) EndPin(id);
}

void PrefixIndex::Impl::MovePins(Node& from, Node& to) {
  const uint32_t pins_of = from.pinned();
  if (pins_of == 0) return;
  const Change of_from(*this, from);
  const Change of_to(*this, to);
  for (auto& [id, pin] : pins) {
    for (Node*& node : pin.nodes) {
      if (node == &from) node = &to;
    }
  }
  to.rare().pinned += pins_of;
  to.pins += pins_of;
  from.pins -= pins_of;
  from.rare().pinned = 0;
}

std::vector<PrefixIndex::PinInfo> PrefixIndex::ListPins() const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PinInfo> list;
  for (const auto& [id, pin] : impl_->pins) {
    PinInfo info{.pin = id, .session = pin.session, .tokens = pin.tokens};
    for (const Node* const node : pin.nodes) {
      for (const Page& page : node->pages()) {
        if (!Present(page)) continue;
        ++info.pages;
        info.bytes += BytesOf(*node, page);
      }
    }
    list.push_back(info);
  }
  std::sort(list.begin(), list.end(),
            [](const PinInfo& a, const PinInfo& b) { return a.pin.value < b.pin.value; });
  return list;
}

}  // namespace prefixd::index
