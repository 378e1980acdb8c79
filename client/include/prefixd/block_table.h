// prefixd/block_table.h: what attention kernels walk. Part of prefixd/client.h, which includes it.
// Plain values. The bytes pointed to stay valid and unchanged while a kernel runs.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace prefixd {

// One layer of one KV block: K units [kv_heads], then V units [kv_heads], each 128-byte aligned and
// laid out for `page_tokens` in its format. `units` is null if the block of a sliding layer has no
// page because no later token attends on it.
struct BlockTableEntry {
  const std::byte* units = nullptr;
  uint64_t arena_offset = ~uint64_t{0};  // of `units` in Client::arena(); all ones = private memory
  uint32_t page_tokens = 0;              // token slots the units were laid out for
  uint32_t tokens = 0;                   // slots in use, <= page_tokens
  uint32_t format = 0;                   // index into the layer's formats
};

// Names the bytes at `units` of an entry: where two names are equal, the bytes are. {0, 0}: no
// name.
struct PageName {
  uint64_t high = 0, low = 0;
  bool operator==(const PageName&) const = default;
};

// The daemon's memory as this process maps it, read-only, in slabs: for code that pins it for a
// device. Only slabs in service have memory, and touching others takes memory from the host.
struct ArenaView {
  std::shared_ptr<const void> mapping{};  // keeps it, whatever becomes of leases, client and daemon
  const std::byte* base = nullptr;        // where arena_offset is 0
  uint64_t bytes = 0, slab_bytes = 0;  // from `base` on; no page crosses a multiple of slab_bytes
  // service[i * service_stride] is odd while slab i is in service. It changes before the slab loses
  // the memory that was pinned, which a slab with a leased page does not.
  const std::atomic<uint64_t>* service = nullptr;
  size_t service_stride = 0;
  // Call it with pinned = 1 before [slab, slab + slabs) is pinned for a device, look at `service`
  // again, and call it with 0 once they are not pinned any more; each device for itself. prefixd
  // waits a while for what leaves service, and stats say what is pinned. Returns 0 if prefixd does
  // not know yet: call it again, with slabs = 0, until it does. May take 1 s.
  int (*tell)(void* teller, uint64_t slab, uint64_t slabs, int pinned) = nullptr;
  void* teller = nullptr;  // as long as `mapping`
};

}  // namespace prefixd
