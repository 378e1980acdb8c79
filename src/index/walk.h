// The walk: down the tree along a request, block by block, comparing tokens and content.
//
// Internal to index/. Pure functions over the tree; the caller holds the index's mutex.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "index/node.h"

namespace prefixd::index {

// A request in a space.
struct Asked {
  const Space* space = nullptr;
  block::SequenceView request;
  uint32_t size() const { return static_cast<uint32_t>(request.tokens.size()); }
};

// Where the request ends or leaves the tree.
struct Walk {
  std::vector<Node*> path;  // full blocks that match entirely, from the first
  Node* last = nullptr;     // the deepest of them, or the root
  uint32_t base = 0;        // tokens of the path
  uint32_t shared = 0;      // tokens after `base` that some child of `last` shares
  uint32_t matched() const { return base + shared; }
};
Walk WalkDown(Node& root, uint32_t block_tokens, const block::SequenceView& request);

// Returns the child with exactly these tokens, or nullptr.
Node* ExactChild(const Node& parent, const block::SequenceView& tokens);
// Returns the first child in token order whose first tokens are these, or nullptr. The other
// children with this prefix directly follow it.
Node* FirstExtending(const Node& parent, const block::SequenceView& tokens);
// Returns how many leading tokens the best child shares. It is a neighbour of the insertion point.
uint32_t BestShared(const Node& parent, const block::SequenceView& tokens);

// Visits the children of a node from the insertion point of `tokens` outwards, those that share
// most first. Leaves out children that share nothing.
class ByShared {
 public:
  ByShared(const Node& parent, const block::SequenceView& tokens);
  struct Neighbour {
    Node* node = nullptr;
    uint32_t shared = 0;
  };
  std::optional<Neighbour> Next();  // nullopt if there are no more

 private:
  uint32_t Shared(Children::const_iterator it) const;
  void LoadUp();
  void LoadDown();

  const Children children_;
  const block::SequenceView tokens_;
  Children::const_iterator up_, down_;  // down_: one past the next below
  uint32_t shared_up_ = 0, shared_down_ = 0;
};

// What stands at the end of the walk.
struct WalkEnd {
  bool declared = false;     // a sequence ends exactly there
  bool goes_on = false;      // something stored goes on beyond there
  bool hole = false;         // no block there has a page
  uint32_t ends_beyond = 0;  // stored ends beyond there, counted up to kMaxDiverged
};
inline constexpr uint32_t kMaxDiverged = 1000;
WalkEnd LookAtEnd(const Walk& walk, uint32_t block_tokens, const block::SequenceView& request);

}  // namespace prefixd::index
