// What an index counts, for statistics.
#pragma once
#include <chrono>
#include <cstdint>

namespace prefixd::index {

struct MemoryCounts {
  uint64_t memory_bytes = 0;  // of the index itself, estimated
  uint64_t table_bytes = 0;   // of these, of leases, pins and reservations
};

struct IndexCounts {
  uint64_t leases = 0, reservations = 0;
  uint64_t leased_bytes = 0;  // extent and page bytes held, each page once
  uint64_t pins = 0;
  uint64_t pinned_bytes = 0;  // of pages in pinned blocks, each once
  uint64_t kept_bytes = 0;    // of pages leased, pinned or both, each once: see total_lease_bytes
  uint64_t dirty_bytes = 0;   // extents of pages that are not on SSD
  // Extents of pages that are on SSD too, or that the SSD refused, and that nobody holds or pinned.
  uint64_t clean_bytes = 0;
  uint64_t spared_bytes = 0;  // extents of blocks that were read again, at most their share
  uint64_t memory_bytes = 0;  // of the index itself, estimated
  uint64_t table_bytes = 0;   // of these, of leases, pins and reservations
  uint64_t spaces = 0;
  uint64_t ends = 0, ram_payload_bytes = 0;  // of all spaces
  uint64_t snapshot_bytes = 0;               // extents of snapshots
  uint64_t evicted_snapshots = 0;  // snapshots given up for room in their share, since the start
  uint64_t refused_snapshots = 0;  // snapshots refused because their share had no room
  uint64_t ghosts = 0;
  int64_t stamp = 0;         // of the latest use, on the scale of SpillBlock::last_use
  uint64_t comparisons = 0;  // of a request with a stored block, since the start
  std::chrono::nanoseconds longest_hold{};  // of the index's mutex, since the start
};

}  // namespace prefixd::index
