// Memory for KV pages as prefixd's RAM tier lays them out: extents of one size cut from slabs, in
// the arena's file on a tmpfs and read through a worker's read-only mapping of it, or in private
// huge pages. One store serves one format after the other, so that its memory is faulted in once.
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

namespace prefixd::bench {

// Anonymous memory in huge pages where the kernel gives them, every byte touched.
class HugeBytes {
 public:
  explicit HugeBytes(size_t bytes) : HugeBytes(Untouched(bytes)) { Touch(); }
  // The same, without memory until it is written to.
  static HugeBytes Untouched(size_t bytes) { return HugeBytes(bytes, {}); }
  ~HugeBytes();
  HugeBytes(HugeBytes&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  HugeBytes& operator=(const HugeBytes&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  struct Unwritten {};
  HugeBytes(size_t bytes, Unwritten);  // aborts when the kernel refuses
  void Touch();
  const size_t bytes_;
  std::byte* data_ = nullptr;
};

struct StoredPage {
  std::byte* write = nullptr;
  const std::byte* read = nullptr;  // the same bytes as a worker sees them
};

class PageStore {
 public:
  virtual ~PageStore() = default;
  // As many pages of this size as fit, in the order in which the store gives them out. What was cut
  // before is void.
  virtual absl::StatusOr<std::vector<StoredPage>> Cut(uint64_t page_bytes) = 0;
  // "arena in 4 KiB pages", "private 2 MiB pages": what the kernel really maps once it is filled.
  virtual std::string name() const = 0;
};

// The arena's file in `folder`, a tmpfs; it is gone with the store or with the process.
absl::StatusOr<std::unique_ptr<PageStore>> MakeArenaStore(const std::string& folder,
                                                          uint64_t bytes);
std::unique_ptr<PageStore> MakePrivateStore(uint64_t bytes);

}  // namespace prefixd::bench
