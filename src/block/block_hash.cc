#include "block/block_hash.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/bytes.h"

namespace prefixd::block {
namespace {

// Appends to a buffer that the caller has sized.
class Appender {
 public:
  explicit Appender(std::byte* to) : to_(to) {}
  void Raw(const void* data, size_t bytes) {
    if (bytes != 0) std::memcpy(to_, data, bytes);
    to_ += bytes;
  }
  void U32(uint32_t value) { Raw(&value, sizeof(value)); }

 private:
  std::byte* to_;
};

void EncodeBlock(const HashKey& key, const BlockHash& parent, const SequenceView& block,
                 std::byte* to) {
  Appender out(to);
  out.Raw(key.data(), key.size());
  out.Raw(parent.data(), parent.size());
  out.U32(static_cast<uint32_t>(block.tokens.size()));
  out.Raw(block.tokens.data(), block.tokens.size_bytes());
  out.U32(static_cast<uint32_t>(block.content.size()));
  for (const ContentKey& item : block.content) {
    out.U32(item.start);
    out.U32(item.item_offset);
    out.U32(item.length);
    out.Raw(item.digest.data(), item.digest.size());
  }
}

}  // namespace

BlockHash RootHash(const SpaceId& space) {
  base::Sha256Stream stream;
  stream.Update(base::AsBytes("prefixd/1/root"));
  stream.Update(space);
  const base::Digest256 digest = stream.Finish();
  BlockHash root;
  std::copy_n(digest.begin(), root.size(), root.begin());
  return root;
}

BlockHash BlockHasher::Hash(const BlockHash& parent, const SequenceView& block) const {
  const size_t bytes = key_.size() + parent.size() + 2 * sizeof(uint32_t) +
                       block.tokens.size_bytes() + block.content.size() * kContentKeyBytes;
  // Every block without content fits: 128 tokens are 568 bytes.
  std::array<std::byte, 1024> small;
  std::vector<std::byte> large(bytes > small.size() ? bytes : 0);
  std::byte* const encoded = large.empty() ? small.data() : large.data();
  EncodeBlock(key_, parent, block, encoded);
  const base::Digest256 digest = base::Sha256({encoded, bytes});
  BlockHash hash;
  std::copy_n(digest.begin(), hash.size(), hash.begin());
  for (uint32_t bit = bits_; bit < 8 * hash.size(); ++bit) {
    hash[bit / 8] &= ~(std::byte{0x80} >> static_cast<int>(bit % 8));
  }
  return hash;
}

}  // namespace prefixd::block
