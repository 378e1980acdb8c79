#include "tests/kernels/guarded_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gtest/gtest.h"

namespace prefixd::kernels {

GuardedPages::GuardedPages(const PagedLayer& layer, const LayerShape& shape, Guard guard)
    : entries_(layer.table().begin(), layer.table().end()) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (quant::BlockTableEntry& entry : entries_) {
    const quant::KvFormat& format = layer.formats()[entry.format];
    const size_t bytes =
        shape.kv_heads *
        (quant::LayoutOfUnit(format.key, shape.key_dim, entry.page_tokens).unit_bytes +
         quant::LayoutOfUnit(format.value, shape.value_dim, entry.page_tokens).unit_bytes);
    const size_t room = (bytes + page - 1) / page * page;
    void* const mapped = ::mmap(nullptr, room + 2 * page, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      ADD_FAILURE() << "no memory to map";
      continue;
    }
    std::byte* const begin = static_cast<std::byte*>(mapped);
    EXPECT_EQ(::mprotect(begin + page, room, PROT_READ | PROT_WRITE), 0);
    std::byte* const to = begin + page + (guard == Guard::kBehind ? room - bytes : 0);
    std::memcpy(to, entry.units, bytes);
    entry.units = to;
    mappings_.push_back({begin, room + 2 * page});
  }
}

GuardedPages::~GuardedPages() {
  for (const Mapping& mapping : mappings_) ::munmap(mapping.begin, mapping.bytes);
}

void GuardedPages::Forbid(size_t block) {
  EXPECT_EQ(::mprotect(mappings_[block].begin, mappings_[block].bytes, PROT_NONE), 0);
}

}  // namespace prefixd::kernels
