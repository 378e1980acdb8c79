// Names of leased pages by what lies in them, for caches behind this one, such as a GPU's memory. A
// name is made of the page's record in the arena: the hash of the block, which stands for the space
// and all tokens up to the block's end, the format, and the check of the page's bytes. So a page
// that was stored again with other bytes has another name, and a page that only moved, or came back
// from SSD, keeps its own.
//
// Not thread-safe.
#pragma once
#include <cstdint>
#include <unordered_map>

#include "arena_mapping.h"
#include "prefixd/client.h"

namespace prefixd::client {

class PageNames {
 public:
  // Returns the name of the units at `offset` in the arena: those of one layer of a page. No name
  // if the page has no record, or `offset` is outside. Requires: the page is leased until this
  // object is gone.
  PageName Of(const ArenaMapping& arena, uint64_t offset);

 private:
  std::unordered_map<uint64_t, PageName> pages_;  // of whole pages, by the place of their record
};

}  // namespace prefixd::client
