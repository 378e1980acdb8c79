// Mode fast reads nothing outside a page: pages end where memory ends, and begin where it begins.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using quant::TensorFormat;

// A copy of some bytes between pages of memory that nothing may touch.
class GuardedBytes {
 public:
  GuardedBytes(const std::byte* from, size_t bytes, bool at_end) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t room = (bytes + page - 1) / page * page;
    size_ = room + 2 * page;
    void* memory = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(mprotect(memory_ + page, room, PROT_READ | PROT_WRITE), 0);
    bytes_ = memory_ + page + (at_end ? room - bytes : 0);
    std::memcpy(bytes_, from, bytes);
  }
  ~GuardedBytes() { munmap(memory_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  const std::byte* data() const { return bytes_; }

 private:
  std::byte* memory_ = nullptr;
  std::byte* bytes_ = nullptr;
  size_t size_ = 0;
};

void ExpectSameBetweenGuards(const TensorFormat& format, uint32_t page_tokens, uint32_t tokens) {
  SCOPED_TRACE(quant::ToString(format) + ", " + std::to_string(tokens) + " of " +
               std::to_string(page_tokens) + " tokens");
  const LayerShape shape{.kv_heads = 1, .key_dim = 64, .value_dim = 64};
  const PagedLayer layer(shape, {{format, format}}, {{tokens, page_tokens, 0}});
  const size_t bytes = 2 * quant::LayoutOfUnit(format, 64, page_tokens).unit_bytes;
  const uint32_t rows = std::min(tokens, 2u);
  const AttentionShape attention{.query_rows = rows,
                                 .query_heads = 4,
                                 .kv_heads = 1,
                                 .key_dim = 64,
                                 .value_dim = 64,
                                 .first_position = tokens - rows,
                                 .scale = 0.125f,
                                 .mode = AttentionMode::kFast};
  const std::vector<float> q = RandomFloats(rows * 4 * 64, 5);
  std::vector<float> want(q.size()), got(q.size());
  ASSERT_TRUE(Attend(layer.table(), layer.formats(), q.data(), want.data(), attention).ok());
  for (const float value : want) ASSERT_TRUE(std::isfinite(value)) << "padding leaked";
  for (const bool at_end : {false, true}) {
    const GuardedBytes page(layer.table()[0].units, bytes, at_end);
    quant::BlockTableEntry entry = layer.table()[0];
    entry.units = page.data();
    ASSERT_TRUE(Attend({&entry, 1}, layer.formats(), q.data(), got.data(), attention).ok());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0);
  }
}

TEST(DecodeGuardTest, NothingOutsideAPageIsReadAndNothingInItsPaddingIsUsed) {
  const TensorFormat formats[] = {quant::Tiled(quant::MlxAffineFormat(8, 64, Dtype::kF16)),
                                  quant::Tiled(quant::MlxAffineFormat(4, 32, Dtype::kF32)),
                                  quant::Tiled(quant::MlxAffineFormat(4, 64, Dtype::kBf16)),
                                  quant::Tiled(quant::GgmlFormat(quant::Codec::kQ8_0)),
                                  quant::Tiled(quant::GgmlFormat(quant::Codec::kQ4_0)),
                                  quant::Tiled(quant::GgmlFormat(quant::Codec::kQ4_1)),
                                  quant::RawFormat(Dtype::kF16),
                                  quant::RawFormat(Dtype::kF32)};
  for (const TensorFormat& format : formats) {
    for (const uint32_t page_tokens : {1u, 3u, 16u, 17u, 31u, 48u, 64u, 80u, 127u, 128u}) {
      ExpectSameBetweenGuards(format, page_tokens, page_tokens);
      if (page_tokens > 2) ExpectSameBetweenGuards(format, page_tokens, page_tokens / 2);
    }
  }
}

}  // namespace
}  // namespace prefixd::kernels
