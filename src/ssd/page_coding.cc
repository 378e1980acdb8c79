#include "ssd/page_coding.h"

#include <zstd.h>

#include <vector>

#include "base/status.h"

namespace prefixd::ssd {
namespace {

constexpr int kLevel = 1;  // level 3 saves one hundredth more, at half the speed

template <size_t kElementBytes>
void Part(std::span<const std::byte> page, char* to) {
  const size_t count = page.size() / kElementBytes;
  for (size_t i = 0; i < count; ++i) {
    for (size_t b = 0; b < kElementBytes; ++b) {
      to[b * count + i] = static_cast<char>(page[i * kElementBytes + b]);
    }
  }
}

template <size_t kElementBytes>
void Join(const std::byte* parted, std::span<std::byte> page) {
  const size_t count = page.size() / kElementBytes;
  for (size_t i = 0; i < count; ++i) {
    for (size_t b = 0; b < kElementBytes; ++b) {
      page[i * kElementBytes + b] = parted[b * count + i];
    }
  }
}

bool IsCoding(uint32_t coding, size_t page_bytes) {
  return (coding == 2 || coding == 4) && page_bytes % coding == 0;
}

}  // namespace

PageCoder::PageCoder() : context_(ZSTD_createCCtx()) {}
PageCoder::~PageCoder() { ZSTD_freeCCtx(context_); }

uint64_t PageCoder::memory_bytes() const { return parted_.capacity() + ZSTD_sizeof_CCtx(context_); }

bool PageCoder::Append(std::span<const std::byte> page, uint32_t element_bytes, std::string* to) {
  if (!IsCoding(element_bytes, page.size())) return false;
  parted_.resize(page.size());
  element_bytes == 2 ? Part<2>(page, parted_.data()) : Part<4>(page, parted_.data());
  const size_t before = to->size();
  const size_t most = page.size() - page.size() / 16;
  to->resize(before + most);
  // An error means that the result does not fit.
  const size_t bytes = ZSTD_compressCCtx(context_, to->data() + before, most, parted_.data(),
                                         parted_.size(), kLevel);
  const bool pays = ZSTD_isError(bytes) == 0;
  to->resize(before + (pays ? bytes : 0));
  return pays;
}

absl::Status DecodePage(std::span<const std::byte> coded, uint32_t coding,
                        std::span<std::byte> page) {
  if (!IsCoding(coding, page.size())) {
    return absl::DataLossError(absl::StrCat("page: coding ", coding, " of ", page.size(),
                                            " bytes, this prefixd reads 0, 2 and 4"));
  }
  std::vector<std::byte> parted(page.size());
  const size_t bytes = ZSTD_decompress(parted.data(), parted.size(), coded.data(), coded.size());
  if (ZSTD_isError(bytes) != 0 || bytes != page.size()) {
    return absl::DataLossError(
        absl::StrCat("page: ", coded.size(), " compressed bytes are not a page of ", page.size()));
  }
  coding == 2 ? Join<2>(parted.data(), page) : Join<4>(parted.data(), page);
  return absl::OkStatus();
}

}  // namespace prefixd::ssd
