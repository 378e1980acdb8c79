// This process's own pages, block by block, as Publish takes them.
//
// Not thread-safe.
#pragma once
#include <cstdint>
#include <vector>

#include "page_memory.h"

namespace prefixd::client {

class OwnPages {
 public:
  virtual ~OwnPages() = default;

  virtual uint32_t block_tokens() const = 0;
  // Whether the block's page of the group is here, whole.
  virtual bool IsOwn(uint32_t group, uint32_t block) const = 0;
  // A page with block_tokens() slots; no memory unless IsOwn().
  struct Page {
    PageMemory memory;
    uint32_t rung = 0;
  };
  virtual Page own_page(uint32_t group, uint32_t block) const = 0;
  // A snapshot of every state group, at one position.
  struct State {
    uint32_t tokens = 0;
    std::vector<PageMemory> pages{};  // [group]; none for groups of other kinds
  };
  // Returns the snapshots at positions in (begin, end], ascending.
  virtual std::vector<State> states(uint32_t begin, uint32_t end) const = 0;
  // Returns the mask of the rungs of `group` that are good for blocks of the sequence.
  virtual uint64_t rungs_used(uint32_t group) const = 0;
};

}  // namespace prefixd::client
