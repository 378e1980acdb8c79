// How a full-precision page stands on SSD: its elements' bytes are parted (all first bytes, then
// all second bytes, ...) and compressed with zstd. Quantized pages do not compress and stand as
// they are.
//
// PageHeader::coding says which: kPlainPage, or the bytes of an element.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"

struct ZSTD_CCtx_s;

namespace prefixd::ssd {

inline constexpr uint32_t kPlainPage = 0;

// Not thread-safe.
class PageCoder {
 public:
  PageCoder();
  ~PageCoder();
  PageCoder(const PageCoder&) = delete;
  PageCoder& operator=(const PageCoder&) = delete;

  // Appends the coded page to `to`. Returns false and appends nothing if that saves less than a
  // sixteenth. Requires: element_bytes is 2 or 4 and divides the page.
  bool Append(std::span<const std::byte> page, uint32_t element_bytes, std::string* to);
  uint64_t memory_bytes() const;

 private:
  ZSTD_CCtx_s* const context_;  // owned
  std::string parted_;
};

// Fills `page` exactly. DataLoss if the bytes are not a page of that length in that coding.
absl::Status DecodePage(std::span<const std::byte> coded, uint32_t coding,
                        std::span<std::byte> page);

}  // namespace prefixd::ssd
