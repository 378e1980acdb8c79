// What is told of a block: whether it is stored, and where.
//
// Internal to index/. A pure function; the caller holds the index's mutex.
#pragma once
#include "block/events.h"
#include "index/node.h"

namespace prefixd::index {

// See StoredBlock in admin.proto. Nothing is stored of a root.
block::StoredState StateOf(const Node& node);

}  // namespace prefixd::index
