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
#include "client/cpp/arena_mapping.h"
#include "ram/arena.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kExtentUnit = 4096;  // as the arena's
constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Whether the mapping that `address` is in has huge pages.
bool IsHuge(const void* address, const std::string& field) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind(field, 0) == 0) {
      return std::stoull(line.substr(line.find(':') + 1)) > 0;
    }
  }
  return false;
}

const char* PageSize(bool huge) { return huge ? "2 MiB" : "4 KiB"; }

class ArenaStore : public PageStore {
 public:
  ArenaStore(std::unique_ptr<ram::Arena> arena, std::shared_ptr<const client::ArenaMapping> mapping)
      : arena_(std::move(arena)), mapping_(std::move(mapping)) {}

  absl::StatusOr<std::vector<StoredPage>> Cut(uint64_t page_bytes) override {
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
  std::string name() const override {
    const bool huge =
        !extents_.empty() && IsHuge(mapping_->data() + extents_.front().offset, "ShmemPmdMapped:");
    return absl::StrCat("arena in ", PageSize(huge), " pages");
  }

 private:
  const std::unique_ptr<ram::Arena> arena_;
  const std::shared_ptr<const client::ArenaMapping> mapping_;
  std::vector<block::Extent> extents_;
};

class PrivateStore : public PageStore {
 public:
  explicit PrivateStore(uint64_t bytes) : memory_(bytes) {}
  absl::StatusOr<std::vector<StoredPage>> Cut(uint64_t page_bytes) override {
    const uint64_t extent = (page_bytes + kExtentUnit - 1) / kExtentUnit * kExtentUnit;
    std::vector<StoredPage> pages;
    for (uint64_t at = 0; at + extent <= memory_.size(); at += extent) {
      pages.push_back({memory_.data() + at, memory_.data() + at});
    }
    return pages;
  }
  std::string name() const override {
    return absl::StrCat("private ", PageSize(IsHuge(memory_.data(), "AnonHugePages:")), " pages");
  }

 private:
  HugeBytes memory_;
};

}  // namespace

HugeBytes::HugeBytes(size_t bytes, Unwritten)
    : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage) {
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
}

HugeBytes::~HugeBytes() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void HugeBytes::Touch() { std::memset(data_, 1, bytes_); }

absl::StatusOr<std::unique_ptr<PageStore>> MakeArenaStore(const std::string& folder,
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
  return std::make_unique<ArenaStore>(std::move(arena), std::move(mapping));
}

std::unique_ptr<PageStore> MakePrivateStore(uint64_t bytes) {
  return std::make_unique<PrivateStore>(bytes);
}

}  // namespace prefixd::bench
