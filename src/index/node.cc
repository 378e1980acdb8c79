#include "index/node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/first_bit.h"
#include "index/allocated.h"
#include "index/node_pool.h"
#include "index/space.h"

namespace prefixd::index {

Node::~Node() {
  for (Page& page : pages()) page.Reset();
  if (has_rare_) delete &Parts();
  delete[] body_;
}

void Node::set_parent(const Node* parent) {
  parent_ = parent == nullptr ? kNoParent : parent->is_root() ? kRootIsParent : parent->number();
}

const block::BlockHash& Node::parent_hash() const {
  const Node* const above = parent();
  return above != nullptr ? above->hash : Parts().parent_hash;
}

void Node::set_record_sequence(uint64_t sequence) {
  if (sequence >= kInRare) rare().record_sequence = sequence;
  record_sequence_ = std::min(sequence, kInRare) & kInRare;
}

uint64_t Node::BodyBytes() const {
  return (has_rare_ ? sizeof(RareParts*) : 0) + sizeof(uint64_t) + page_slots_ * sizeof(Page) +
         size() * sizeof(block::Token);
}

void Node::SetTokens(uint32_t first_token, const block::SequenceView& tokens, uint64_t serial,
                     uint32_t page_slots) {
  first_token_ = first_token % block::kMaxTokens;
  size_ = static_cast<uint8_t>(tokens.tokens.size());
  page_slots_ = static_cast<uint16_t>(page_slots);
  body_ = new std::byte[BodyBytes()];
  std::memcpy(body_, &serial, sizeof(serial));
  std::ranges::copy(std::as_bytes(tokens.tokens), AfterPages());
  if (!tokens.content.empty()) {
    rare().content.assign(tokens.content.begin(), tokens.content.end());
  }
}

bool Node::AddSerial(uint64_t serial) {
  constexpr size_t kMost = 8;
  if (serial == 0 || serial == this->serial()) return false;
  const std::span<const uint64_t> known = other_serials();
  if (std::ranges::find(known, serial) != known.end()) return false;
  std::vector<uint64_t>& others = rare().other_serials;
  if (others.size() == kMost) others.erase(others.begin());
  others.push_back(serial);
  return true;
}

void Node::Rebuild(size_t slots, RareParts* rare) {
  const uint64_t old_serial = serial();
  const std::span<const std::byte> old_pages = std::as_bytes(pages());
  const std::span<const std::byte> old_tokens = std::as_bytes(tokens());
  std::byte* const old = body_;
  has_rare_ = rare != nullptr;
  page_slots_ = static_cast<uint16_t>(slots);
  body_ = new std::byte[BodyBytes()];
  if (has_rare_) std::memcpy(body_, &rare, sizeof(rare));
  std::memcpy(AfterRare(), &old_serial, sizeof(old_serial));
  std::ranges::copy(old_pages, reinterpret_cast<std::byte*>(AfterSerial()));
  std::ranges::copy(old_tokens, AfterPages());
  delete[] old;
}

Page& Node::InsertPage(size_t at, const Page& page) {
  if (page_count_ == page_slots_) {
    Rebuild(page_slots_ + 1u + page_slots_ / 4u, has_rare_ ? &Parts() : nullptr);
  }
  ++page_count_;
  const std::span<Page> all = pages();
  std::memmove(static_cast<void*>(&all[at] + 1), &all[at], (all.size() - 1 - at) * sizeof(Page));
  all[at] = page;
  return all[at];
}

void Node::EraseGone() {
  uint16_t kept = 0;
  const std::span<Page> all = pages();
  for (Page& page : all) {
    if (!Present(page) && page.holders() == 0) {
      page.Reset();
    } else if (&all[kept] != &page) {
      all[kept++] = page;
    } else {
      ++kept;
    }
  }
  page_count_ = kept;
  if (kept == 0 && page_slots_ > 0) Rebuild(0, has_rare_ ? &Parts() : nullptr);
}

void Node::set_ends(const EndSet& ends) {
  const bool fits = ends.count() <= 1 && (!record_says_end_ || ends == OneEnd());
  if (has_rare_ || !fits) {
    rare().ends = ends;
  } else {
    end_ = ends.none() ? 0 : (base::FirstBit(ends) + 1) & 255;
  }
}

void Node::set_record_ends(const EndSet& ends) {
  if (has_rare_ || (ends.any() && ends != OneEnd())) {
    rare().record_ends = ends;
  } else {
    record_says_end_ = ends.any();
  }
}

RareParts& Node::rare() {
  if (!has_rare_) {
    auto* const parts = new RareParts{
        .content = {}, .ends = ends(), .record_ends = record_ends(), .other_serials = {}};
    Rebuild(page_slots_, parts);
  }
  return Parts();
}

void Node::FoldRare() {
  if (!has_rare_ || !in_tree) return;
  RareParts* const parts = &Parts();
  const EndSet ends = parts->ends, said = parts->record_ends;
  const bool one_end = ends.count() <= 1 && (said.none() || said == ends);
  const bool nothing = one_end && parts->content.empty() && parts->other_serials.empty() &&
                       parts->holds == 0 && parts->pinned == 0 && record_sequence_ != kInRare;
  if (!nothing) return;
  Rebuild(page_slots_, nullptr);
  delete parts;
  record_says_end_ = false;
  set_ends(ends);
  set_record_ends(said);
}

uint64_t Node::MemoryBytes() const {
  uint64_t bytes = Allocated(BodyBytes());
  for (const Page& page : pages()) bytes += page.UseBytes();
  if (!has_rare_) return bytes;
  return bytes + Allocated(sizeof(RareParts)) +
         Allocated(Parts().content.capacity() * sizeof(block::ContentKey)) +
         Allocated(Parts().other_serials.capacity() * sizeof(uint64_t));
}

PageCounts CountPages(const Node& node) {
  PageCounts counts;
  for (const Page& page : node.pages()) {
    if (Present(page)) ++counts.present;
    if (page.has_extent()) ++counts.ram;
    if (page.state() == PageState::kRam) ++counts.dirty;
    if (page.holders() > 0) ++counts.held;
    if (Busy(page.state())) ++counts.busy;
    if (page.state() == PageState::kUnverified) {
      ++counts.unverified;
      if (!OnSsd(page)) ++counts.unverified_dirty;
    }
  }
  return counts;
}

bool AnyPresent(const Node& node) { return std::ranges::any_of(node.pages(), Present); }

bool AnyInRam(const Node& node) {
  return std::ranges::any_of(node.pages(), [](const Page& page) { return page.has_extent(); });
}

uint64_t PageBytes(const Node& node, const Page& page) {
  return node.space()->sizes.At(page.sizes()).page_bytes;
}
uint64_t PayloadBytes(const Node& node, const Page& page) {
  return node.space()->sizes.At(page.sizes()).payload_bytes;
}

namespace {

// Returns the first page at or behind this group and rung.
auto Place(std::span<const Page> pages, uint32_t group, uint32_t rung) {
  return std::lower_bound(pages.begin(), pages.end(), std::pair(group, rung),
                          [](const Page& page, const std::pair<uint32_t, uint32_t>& key) {
                            return std::pair<uint32_t, uint32_t>(page.group(), page.rung()) < key;
                          });
}

}  // namespace

const Page* FindPage(const Node& node, uint32_t group, uint32_t rung) {
  const std::span<const Page> pages = node.pages();
  // Short cut: almost everywhere each group before it has one page.
  if (group < pages.size() && pages[group].group() == group && pages[group].rung() == rung) {
    return &pages[group];
  }
  const auto it = Place(pages, group, rung);
  const bool found = it != pages.end() && it->group() == group && it->rung() == rung;
  return found ? &*it : nullptr;
}

Page* FindPage(Node& node, uint32_t group, uint32_t rung) {
  return const_cast<Page*>(FindPage(std::as_const(node), group, rung));
}

Page& SlotFor(Node& node, uint32_t group, uint32_t rung) {
  if (Page* const there = FindPage(node, group, rung)) return *there;
  const std::span<const Page> pages = std::as_const(node).pages();
  const auto at = Place(pages, group, rung) - pages.begin();
  return node.InsertPage(static_cast<size_t>(at), Page(group, rung));
}

bool Covers(const Node& other, const Node& node) {
  return std::ranges::all_of(node.pages(), [&](const Page& page) {
    if (!Present(page) || node.space()->shape.IsState(page.group())) return true;
    const Page* const same = FindPage(other, page.group(), page.rung());
    return same != nullptr && Present(*same);
  });
}

bool HasSnapshots(const Node& node) {
  return std::ranges::any_of(node.pages(), [&](const Page& page) {
    return Present(page) && node.space()->shape.IsState(page.group());
  });
}

bool SnapshotsMayMove(const Node& node) {
  return std::ranges::all_of(node.pages(), [&](const Page& page) {
    const bool under_way =
        page.state() == PageState::kSpilling || page.state() == PageState::kPromoting;
    return !node.space()->shape.IsState(page.group()) || (page.holders() == 0 && !under_way);
  });
}

block::BlockHash HashOfPrefix(const Node& node, uint32_t tokens) {
  return node.space()->hasher->Hash(node.parent_hash(), Slice(node.view(), 0, tokens).view());
}

void Describe(Node& node, const Page& page, PageInfo& info) {
  info.ref = {.node = &node, .node_id = node.id(), .group = page.group(), .rung = page.rung()};
  info.state = page.state();
  info.name.space = node.space()->shape.id;
  info.name.block = node.hash;
  info.name.group = page.group();
  info.name.rung = page.rung();
  info.name.tokens = node.size();
  info.first_token = node.first_token();
  info.tokens = node.size();
  info.page_bytes = PageBytes(node, page);
  info.payload_bytes = PayloadBytes(node, page);
  info.check = page.check;
  info.extent = page.extent();
  info.ssd_sequence = page.ssd_sequence();
  if (!node.space()->shape.IsState(page.group())) return;
  info.name.tokens = info.tokens = page.rung();
  if (page.rung() < node.size()) info.name.block = HashOfPrefix(node, page.rung());
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
  for (const Page& page : node.pages()) {
    if (page.marks() == nullptr) continue;
    const std::array<uint64_t, 2> words = EndsIn(node, page);
    for (size_t i = 0; i < 2; ++i) page.marks()->ends[i].store(words[i], std::memory_order_relaxed);
  }
}

std::array<uint64_t, 2> EndsIn(const Node& node, const Page& page) {
  EndSet ends = node.ends();
  if (node.space()->shape.IsState(page.group())) ends &= ~(~EndSet() << page.rung());
  return {(ends & EndSet(~uint64_t{0})).to_ullong(), (ends >> 64).to_ullong()};
}

void WriteMarks(const Node& node, const Page& page, int64_t now) {
  if (page.marks() == nullptr) return;
  page.marks()->SetHolders(page.slots());
  page.marks()->last_use.store(now, std::memory_order_relaxed);
  WriteEnds(node);
}

Slice::Slice(const block::SequenceView& sequence, uint32_t begin, uint32_t end) {
  view_.tokens = sequence.tokens.subspan(begin, end - begin);
  if (sequence.content.empty()) return;
  content_ = block::CutContent(sequence.content, begin, end);
  view_.content = content_;
}

}  // namespace prefixd::index
