#include "bench/common/page_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

bool ArenaIsHuge() {
  std::ifstream maps("/proc/self/smaps");
  for (std::string line; std::getline(maps, line);) {
    if (!line.starts_with("ShmemPmdMapped:")) continue;
    if (std::stoull(line.substr(line.find(':') + 1)) > 0) return true;
  }
  return false;
}

HugeBytes::HugeBytes(size_t bytes) : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
  // One more, to begin on a huge page.
  void* const map = ::mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    std::fprintf(stderr, "prefixd-bench: no memory for %zu bytes\n", bytes_);
    std::abort();
  }
  const auto begin = reinterpret_cast<uintptr_t>(map);
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) ::munmap(map, aligned - begin);
  const uintptr_t rest = begin + kHugePage - aligned;
  data_ = reinterpret_cast<std::byte*>(aligned);
  if (rest > 0) ::munmap(data_ + bytes_, rest);
  ::madvise(data_, bytes_, MADV_HUGEPAGE);
  std::memset(data_, 1, bytes_);
}

HugeBytes::~HugeBytes() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

absl::StatusOr<std::unique_ptr<PageStore>> PageStore::Make(const std::string& folder,
                                                           uint64_t bytes) {
  static int stores = 0;
  const std::string path =
      absl::StrCat(folder, "/prefixd-bench-", ::getpid(), "-", ++stores, ".arena");
  PREFIXD_ASSIGN_OR_RETURN(
      std::unique_ptr<ram::Arena> arena,
      ram::Arena::Open({.capacity_bytes = bytes, .path = path, .max_capacity_bytes = bytes}));
  PREFIXD_ASSIGN_OR_RETURN(const int fd, arena->OpenReadOnly());
  base::Descriptor lock(::memfd_create("no-lock", MFD_CLOEXEC));  // there is no daemon to tell
  PREFIXD_ASSIGN_OR_RETURN(std::shared_ptr<const client::ArenaMapping> mapping,
                           client::ArenaMapping::Map(base::Descriptor(fd), std::move(lock),
                                                     {.file_bytes = arena->file_bytes(),
                                                      .data_offset = arena->data_offset()}));
  std::error_code ignored;  // without its name it goes with this process, however that ends
  std::filesystem::remove(path, ignored);
  return std::unique_ptr<PageStore>(new PageStore(std::move(arena), std::move(mapping)));
}

absl::StatusOr<std::vector<StoredPage>> PageStore::Cut(uint64_t page_bytes) {
  for (const block::Extent& extent : extents_) arena_->Free(extent);
  extents_.clear();
  std::vector<StoredPage> pages;
  for (;;) {
    const absl::StatusOr<block::Extent> extent = arena_->Allocate(page_bytes, page_bytes);
    if (!extent.ok() && absl::IsResourceExhausted(extent.status())) return pages;
    PREFIXD_RETURN_IF_ERROR(extent.status());
    extents_.push_back(*extent);
    pages.push_back({arena_->data(*extent), mapping_->data() + extent->offset});
  }
}

std::string PageStore::name() const {
  return absl::StrCat("arena in ", ArenaIsHuge() ? "2 MiB" : "4 KiB", " pages");
}

}  // namespace prefixd::bench
