// Where along a sequence snapshots of states are wanted, and which one a chain gives up when it has
// too many.
//
// Internal to index/. Pure functions over the tree; the caller holds the index's mutex.
#pragma once
#include <cstdint>
#include <vector>

#include "index/space.h"
#include "index/walk.h"

namespace prefixd::index {

// Returns positions, ascending, where a request may end or go on and that have no snapshot yet: one
// token before the sequence's end and the ends of turns, where the sequence leaves what is stored,
// where stored sequences part, and, as far as the chain has room (wish.max_snapshots), on a lattice
// of a power of two of blocks. Empty without a state group. Requires: wish.turn_ends ascend.
std::vector<uint32_t> PlanSnapshots(const Walk& walk, const Reservation& reservation,
                                    const SnapshotWish& wish);

// A position of a chain with snapshots, of one or several groups.
struct SnapshotPlace {
  Node* node = nullptr;
  uint32_t offset = 0;  // in the node
  uint32_t position() const { return node->first_token() + offset; }
};
// Returns the snapshots of the chain from the root to `leaf`, by position.
std::vector<SnapshotPlace> SnapshotsOf(Node& leaf);
// Returns the index of the snapshot that is missed least. It is not one token before an end and not
// where sequences part, unless all are; among several it is the one closest behind the one before
// it. The last one stays if there are others. Requires: not empty.
size_t LeastMissed(const std::vector<SnapshotPlace>& places);

}  // namespace prefixd::index
