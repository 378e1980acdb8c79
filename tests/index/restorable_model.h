// The restorable length by its definition, and random trees to try it on: full, sliding and state
// groups, several rungs, missing pages, partial siblings and content ranges.
#pragma once
#include <algorithm>
#include <random>

#include "block/block_hash.h"
#include "tests/index/index_fixture.h"

namespace prefixd::index {

inline constexpr uint32_t kBlockTokens = 4;
inline constexpr auto kFull = block::LayerKind::kFull;
inline constexpr auto kSliding = block::LayerKind::kSliding;
inline constexpr auto kState = block::LayerKind::kState;

struct Sequence {
  Tokens tokens;
  std::vector<block::ContentKey> content;
  block::SequenceView view() const { return {tokens, content}; }
  Sequence Cut(uint32_t begin, uint32_t end) const {
    return {{tokens.begin() + begin, tokens.begin() + end}, block::CutContent(content, begin, end)};
  }
};

using Pages = std::set<std::pair<uint32_t, uint32_t>>;  // group, rung or offset

// What was restored and not superseded since.
struct Block {
  Sequence parent;  // every token before it
  Sequence own;
  Pages pages;
};

inline bool SameContent(const Sequence& a, const Sequence& b) {
  return a.tokens == b.tokens && a.tokens.size() == block::CommonPrefix(a.view(), b.view());
}

class Model {
 public:
  struct Usable {
    std::vector<uint32_t> groups;
    std::vector<uint64_t> rungs;  // of every group
  };
  Model(const SpaceShape& shape) : shape_(shape) {}

  void Add(const Block& block) {
    const auto exact = std::ranges::find_if(blocks_, [&](const Block& other) {
      return SameContent(other.parent, block.parent) && SameContent(other.own, block.own);
    });
    Block* now = nullptr;
    if (exact != blocks_.end()) {
      exact->pages.insert(block.pages.begin(), block.pages.end());
      now = &*exact;
    } else if (Block* const longer = FirstCovering(block); longer != nullptr) {
      MoveStates(block, *longer);
      return;
    } else if (block.own.tokens.size() == kBlockTokens || !block.pages.empty()) {
      blocks_.push_back(block);
      now = &blocks_.back();
    }
    if (now == nullptr) return;
    const Block superseding = *now;
    for (const Block& other : blocks_) {
      if (IsSuperseded(other, superseding)) MoveStates(other, *now);
    }
    std::erase_if(blocks_, [&](const Block& other) { return IsSuperseded(other, superseding); });
  }

  // By definition.
  bool IsRestorable(const Sequence& request, uint32_t r, const Usable& usable, bool causal) const {
    if (r == 0) return true;
    const uint32_t last = (r - 1) / kBlockTokens;
    for (const block::ContentKey& key : request.content) {
      if (!causal && r > key.start && r < key.start + key.length) return false;
    }
    std::vector<const Block*> path;
    for (uint32_t i = 0; i < last; ++i) {
      const Sequence before = request.Cut(0, i * kBlockTokens);
      const Sequence own = request.Cut(i * kBlockTokens, (i + 1) * kBlockTokens);
      const auto found = std::ranges::find_if(blocks_, [&](const Block& block) {
        return SameContent(block.parent, before) && SameContent(block.own, own);
      });
      if (found == blocks_.end()) return false;
      path.push_back(&*found);
    }
    const Sequence before = request.Cut(0, last * kBlockTokens);
    const Sequence head = request.Cut(last * kBlockTokens, r);
    return std::ranges::any_of(blocks_, [&](const Block& block) {
      return SameContent(block.parent, before) &&
             block::CommonPrefix(block.own.view(), head.view()) == head.tokens.size() &&
             Serve(path, block, r, usable);
    });
  }

 private:
  bool HasRung(const Block& block, uint32_t group, uint64_t mask) const {
    return std::ranges::any_of(block.pages, [&](const auto& page) {
      return page.first == group && (mask >> page.second & 1) != 0;
    });
  }
  bool Serve(const std::vector<const Block*>& path, const Block& last, uint32_t r,
             const Usable& usable) const {
    for (const uint32_t group : usable.groups) {
      const GroupRule rule = shape_.RuleOf(group);
      if (rule.kind == kState) {
        const auto offset = static_cast<uint32_t>(r - last.parent.tokens.size());
        if (!last.pages.contains({group, offset})) return false;
        continue;
      }
      for (uint32_t token = 0; token < r; ++token) {
        const bool needed =
            rule.kind == kFull || token < rule.sink_tokens || uint64_t{token} + rule.window >= r;
        const uint32_t i = token / kBlockTokens;
        const Block& block = i < path.size() ? *path[i] : last;
        if (needed && !HasRung(block, group, usable.rungs[group])) return false;
      }
    }
    return true;
  }
  bool Covers(const Block& block, const Block& other) const {
    return std::ranges::all_of(other.pages, [&](const auto& page) {
      return shape_.IsState(page.first) || block.pages.contains(page);
    });
  }
  static bool IsShorter(const Block& block, const Block& than) {
    return SameContent(block.parent, than.parent) &&
           block.own.tokens.size() < than.own.tokens.size() &&
           block::CommonPrefix(block.own.view(), than.own.view()) == block.own.tokens.size();
  }
  bool IsSuperseded(const Block& block, const Block& by) const {
    return IsShorter(block, by) && Covers(by, block);
  }
  Block* FirstCovering(const Block& block) {
    Block* first = nullptr;
    for (Block& other : blocks_) {
      if (block.own.tokens.size() == kBlockTokens || !IsSuperseded(block, other)) continue;
      if (first == nullptr || block::Compare(other.own.view(), first->own.view()) < 0) {
        first = &other;
      }
    }
    return first;
  }
  void MoveStates(const Block& from, Block& to) {
    for (const auto& page : from.pages) {
      if (shape_.IsState(page.first)) to.pages.insert(page);
    }
  }

  const SpaceShape& shape_;
  std::vector<Block> blocks_;
};

inline std::vector<SpaceShape> Shapes() {
  std::vector<SpaceShape> shapes = {
      {.rungs = {2, 1, 0, 0}, .rules = {{}, {kSliding, 5, 2}, {kState}, {kState}}},
      {.rungs = {1, 0}, .rules = {{}, {kState}}},
      {.rungs = {2, 2}, .rules = {{kSliding, 7, 5}, {kSliding, 1, 0}}},
      {.rungs = {0}, .rules = {{kState}}},
      {.rungs = {1, 2, 1}, .rules = {{}, {kSliding, 4, 0}, {kSliding, 6, 9}}},
      {.rungs = {1, 1}, .rules = {{kSliding, 3, 1}, {}}},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].id[0] = static_cast<std::byte>(i + 1);
    shapes[i].block_tokens = kBlockTokens;
  }
  return shapes;
}

class GrownTest : public testing::Test {
 protected:
  GrownTest() : index_(PrefixIndex::Options()) {
    for (const SpaceShape& shape : shapes_) spaces_.push_back(index_.AddSpace(shape));
  }
  uint32_t Pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  bool OneIn(uint32_t n) { return Pick(n) == 0; }

  Sequence NewSequence(uint32_t size) {
    Sequence sequence;
    for (uint32_t i = 0; i < size; ++i) sequence.tokens.push_back(Pick(2));
    if (OneIn(2) && size > 2) {
      const uint32_t start = Pick(size - 1);
      block::ContentKey key{.start = start, .length = 1 + Pick(size - start)};
      key.digest[0] = static_cast<std::byte>(Pick(2));
      sequence.content.push_back(key);
    }
    return sequence;
  }
  // Of a sequence: other from some token on.
  Sequence Diverging(const Sequence& sequence) {
    Sequence other = sequence;
    other.tokens[Pick(static_cast<uint32_t>(other.tokens.size()))] ^= 1;
    return other;
  }
  Pages SomePages(const SpaceShape& shape, uint32_t tokens) {
    Pages pages;
    for (uint32_t group = 0; group < shape.rungs.size(); ++group) {
      const bool state = shape.IsState(group);
      for (uint32_t rung = 0; rung < (state ? tokens : shape.rungs[group]); ++rung) {
        if (state ? OneIn(3) : !OneIn(5)) pages.emplace(group, rung + (state ? 1 : 0));
      }
    }
    return pages;
  }
  // Any that is another block's no more: the hash is whole here.
  static uint64_t SerialOf(const block::BlockHash& hash) {
    uint64_t serial = 0;
    std::memcpy(&serial, hash.data(), sizeof(serial));
    return serial;
  }
  void Restore(size_t space, const Block& block) {
    block::BlockHash hash = block::RootHash(shapes_[space].id);
    uint64_t serial = 0;
    const auto size = static_cast<uint32_t>(block.parent.tokens.size());
    for (uint32_t at = 0; at < size; at += kBlockTokens) {
      const Sequence own = block.parent.Cut(at, at + kBlockTokens);
      hash = block::BlockHasher().Hash(hash, own.view());
      serial = SerialOf(hash);
    }
    const block::BlockHash own_hash = block::BlockHasher().Hash(hash, block.own.view());
    RestoredBlock record{.hash = own_hash,
                         .parent = hash,
                         .serials = {.own = SerialOf(own_hash), .parent = serial},
                         .other_serials = {},
                         .tokens = block.own.tokens,
                         .content = block.own.content,
                         .ends = {},
                         .pages = {},
                         .record_sequence = ++next_};
    for (const auto& [group, rung] : block.pages) {
      const bool state = shapes_[space].IsState(group);
      const auto tokens = state ? rung : static_cast<uint32_t>(block.own.tokens.size());
      record.pages.push_back({.group = group,
                              .rung = rung,
                              .tokens = tokens,
                              .page_bytes = 100,
                              .payload_bytes = 100,
                              .check = 1,
                              .ssd_sequence = ++next_});
    }
    const absl::Status restored = index_.Restore(spaces_[space], record);
    ASSERT_TRUE(restored.ok() || absl::IsNotFound(restored)) << restored;
  }
  // Blocks along a sequence, and some beside them.
  void Grow(size_t space, const Sequence& sequence, Model& model) {
    const auto size = static_cast<uint32_t>(sequence.tokens.size());
    for (uint32_t first = 0; first < size; first += kBlockTokens) {
      const uint32_t end = std::min(size, first + kBlockTokens);
      Block block{.parent = sequence.Cut(0, first), .own = sequence.Cut(first, end), .pages = {}};
      block.pages = SomePages(shapes_[space], end - first);
      AddBoth(space, block, model);
      for (uint32_t beside = Pick(3); beside > 0; --beside) {
        Block other = block;
        other.own = Diverging(block.own).Cut(0, 1 + Pick(end - first));
        other.pages = SomePages(shapes_[space], static_cast<uint32_t>(other.own.tokens.size()));
        AddBoth(space, other, model);
      }
    }
  }
  void AddBoth(size_t space, const Block& block, Model& model) {
    Restore(space, block);
    model.Add(block);
  }
  const std::vector<SpaceShape> shapes_ = Shapes();
  PrefixIndex index_;
  std::vector<block::SpaceHandle> spaces_;
  std::mt19937_64 random_{7};
  uint64_t next_ = 0;
};

}  // namespace prefixd::index
