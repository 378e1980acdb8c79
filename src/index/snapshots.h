// Where along a sequence snapshots of states are wanted, and which go when a chain has too many.
//
// Internal to index/. Pure functions over the tree; the caller holds the index's mutex.
#pragma once
#include <cstdint>
#include <vector>

#include "index/space.h"
#include "index/walk.h"

namespace prefixd::index {

// Positions, ascending, where a request may end or go on and no snapshot is yet: just before the
// sequence's end and those of turns, where it leaves what is stored, where stored sequences part,
// and, as far as the chain has room, on a lattice of a power of two of blocks. None of spaces
// without states. Requires: wish.turn_ends ascend.
std::vector<uint32_t> PlanSnapshots(const Walk& walk, const Reservation& reservation,
                                    const SnapshotWish& wish);

// A position of a chain with snapshots, of one or several groups.
struct SnapshotPlace {
  Node* node = nullptr;
  uint32_t offset = 0;  // in the node
  uint32_t position() const { return node->first_token() + offset; }
};
// Those of the chain from the root to `leaf`, by position.
std::vector<SnapshotPlace> SnapshotsOf(Node& leaf);
// The one that is missed least, of more than one that may go: not just before an end, not where
// sequences part, and with the closest one before it. The last of the chain stays. Requires: not
// empty.
size_t LeastMissed(const std::vector<SnapshotPlace>& places);

}  // namespace prefixd::index
