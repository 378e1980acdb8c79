#include "index/node.h"

#include <algorithm>

#include "index/space.h"

namespace prefixd::index {

bool ChildLess::operator()(const Node* a, const Node* b) const {
  return block::Compare(a->view(), b->view()) < 0;
}
bool ChildLess::operator()(const Node* a, const block::SequenceView& b) const {
  ++*comparisons;
  return block::Compare(a->view(), b) < 0;
}
bool ChildLess::operator()(const block::SequenceView& a, const Node* b) const {
  ++*comparisons;
  return block::Compare(a, b->view()) < 0;
}

const Page* FindPage(const Node& node, uint32_t group, uint32_t rung) {
  const auto it =
      std::lower_bound(node.pages.begin(), node.pages.end(), std::pair(group, rung),
                       [](const Page& page, const std::pair<uint32_t, uint32_t>& key) {
                         return std::pair<uint32_t, uint32_t>(page.group, page.rung) < key;
                       });
  const bool found = it != node.pages.end() && it->group == group && it->rung == rung;
  return found ? &*it : nullptr;
}

Page* FindPage(Node& node, uint32_t group, uint32_t rung) {
  return const_cast<Page*>(FindPage(std::as_const(node), group, rung));
}

Page& SlotFor(Node& node, uint32_t group, uint32_t rung) {
  if (Page* const there = FindPage(node, group, rung)) return *there;
  const auto at = std::find_if(node.pages.begin(), node.pages.end(), [&](const Page& other) {
    return std::pair<uint32_t, uint32_t>(other.group, other.rung) > std::pair(group, rung);
  });
  return *node.pages.insert(
      at, Page{.group = static_cast<uint16_t>(group), .rung = static_cast<uint16_t>(rung)});
}

bool Covers(const Node& other, const Node& node) {
  return std::all_of(node.pages.begin(), node.pages.end(), [&](const Page& page) {
    if (!Present(page) || node.space->shape.IsState(page.group)) return true;
    const Page* const same = FindPage(other, page.group, page.rung);
    return same != nullptr && Present(*same);
  });
}

bool HasSnapshots(const Node& node) {
  return std::any_of(node.pages.begin(), node.pages.end(), [&](const Page& page) {
    return Present(page) && node.space->shape.IsState(page.group);
  });
}

bool SnapshotsMayMove(const Node& node) {
  return std::all_of(node.pages.begin(), node.pages.end(), [&](const Page& page) {
    const bool under_way =
        page.state == PageState::kSpilling || page.state == PageState::kPromoting;
    return !node.space->shape.IsState(page.group) || (page.holders == 0 && !under_way);
  });
}

block::BlockHash HashOfPrefix(const Node& node, uint32_t tokens) {
  return block::HashBlock(node.parent_hash, Slice(node.view(), 0, tokens).view());
}

void Describe(Node& node, const Page& page, PageInfo& info) {
  info.ref = {.node = &node, .node_id = node.id, .group = page.group, .rung = page.rung};
  info.state = page.state;
  info.name.space = node.space->shape.id;
  info.name.block = node.hash;
  info.name.group = page.group;
  info.name.rung = page.rung;
  info.name.tokens = node.size();
  info.first_token = node.first_token;
  info.tokens = node.size();
  info.page_bytes = page.page_bytes;
  info.payload_bytes = page.payload_bytes;
  info.check = page.check;
  info.extent = page.extent;
  info.ssd_sequence = page.ssd_sequence;
  if (!node.space->shape.IsState(page.group)) return;
  info.name.tokens = info.tokens = page.rung;
  if (page.rung < node.size()) info.name.block = HashOfPrefix(node, page.rung);
}

PageInfo InfoOf(Node& node, const Page& page) {
  PageInfo info;
  Describe(node, page, info);
  return info;
}

std::vector<uint32_t> ListEnds(const EndSet& ends) {
  std::vector<uint32_t> list;
  for (uint32_t k = 0; k < ends.size(); ++k) {
    if (ends.test(k)) list.push_back(k + 1);
  }
  return list;
}

void WriteEnds(const Node& node) {
  for (const Page& page : node.pages) {
    if (page.marks == nullptr) continue;
    const std::array<uint64_t, 2> words = EndsIn(node, page);
    for (size_t i = 0; i < 2; ++i) page.marks->ends[i].store(words[i], std::memory_order_relaxed);
  }
}

std::array<uint64_t, 2> EndsIn(const Node& node, const Page& page) {
  EndSet ends = node.ends;
  if (node.space->shape.IsState(page.group)) ends &= ~(~EndSet() << page.rung);
  return {(ends & EndSet(~uint64_t{0})).to_ullong(), (ends >> 64).to_ullong()};
}

void WriteMarks(const Node& node, const Page& page, int64_t now) {
  if (page.marks == nullptr) return;
  page.marks->holders.store(page.slots, std::memory_order_release);
  page.marks->last_use.store(now, std::memory_order_relaxed);
  WriteEnds(node);
}

uint64_t MemoryOf(const Node& node) {
  constexpr uint64_t kInTables = 160;  // child slot, live set, hash table, both orders
  return sizeof(Node) + kInTables + node.tokens.capacity() * sizeof(block::Token) +
         node.content.capacity() * sizeof(block::ContentKey) + node.pages.capacity() * sizeof(Page);
}

Slice::Slice(const block::SequenceView& sequence, uint32_t begin, uint32_t end) {
  view_.tokens = sequence.tokens.subspan(begin, end - begin);
  if (sequence.content.empty()) return;
  content_ = block::CutContent(sequence.content, begin, end);
  view_.content = content_;
}

}  // namespace prefixd::index
