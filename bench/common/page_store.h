// Memory for KV pages as prefixd's RAM tier lays them out: extents of one size cut from slabs, in
// the arena's file on a tmpfs and read through a worker's read-only mapping of it. One store serves
// one format after the other, so that its memory is faulted in once.
//
// One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cpp/arena_mapping.h"
#include "ram/arena.h"

namespace prefixd::bench {

// Anonymous memory in huge pages where the kernel gives them, every byte touched.
class HugeBytes {
 public:
  explicit HugeBytes(size_t bytes);  // aborts when the kernel refuses
  ~HugeBytes();
  HugeBytes(HugeBytes&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  HugeBytes& operator=(const HugeBytes&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  const size_t bytes_;
  std::byte* data_ = nullptr;
};

struct StoredPage {
  std::byte* write = nullptr;
  const std::byte* read = nullptr;  // the same bytes as a worker sees them
};

class PageStore {
 public:
  // The arena's file in `folder`, a tmpfs; it is gone with the store or with the process.
  static absl::StatusOr<std::unique_ptr<PageStore>> Make(const std::string& folder, uint64_t bytes);
  // As many pages of this size as fit, in the order in which the arena gives them out. What was cut
  // before is void.
  absl::StatusOr<std::vector<StoredPage>> Cut(uint64_t page_bytes);
  // "arena in 4 KiB pages": what the kernel really maps once it is filled.
  std::string name() const;

 private:
  PageStore(std::unique_ptr<ram::Arena> arena, std::shared_ptr<const client::ArenaMapping> mapping)
      : arena_(std::move(arena)), mapping_(std::move(mapping)) {}
  const std::unique_ptr<ram::Arena> arena_;
  const std::shared_ptr<const client::ArenaMapping> mapping_;
  std::vector<block::Extent> extents_;
};

// Whether the kernel has huge pages of the arena mapped here.
bool ArenaIsHuge();

}  // namespace prefixd::bench
