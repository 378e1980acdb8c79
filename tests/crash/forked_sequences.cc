#include "tests/crash/forked_sequences.h"

#include <cstring>

#include "bench/common/mix.h"

namespace prefixd::bench {
namespace {

constexpr size_t kPlaces = size_t{1}
                           << 15;  // words at which a row may begin: stays in the L2 cache

// What decides the bytes of a token: everything before it, too.
uint64_t PrefixOf(const ForkedName& name, uint32_t token) {
  const uint64_t branch = token < name.shared_tokens ? 0 : name.branch + uint64_t{1};
  return Mix(Mix(uint64_t{name.family} << 32 | branch) ^ token);
}

}  // namespace

std::vector<uint32_t> TokensOf(const ForkedName& name) {
  std::vector<uint32_t> tokens(name.tokens);
  for (uint32_t i = 0; i < name.tokens; ++i) {
    tokens[i] = static_cast<uint32_t>(PrefixOf(name, i) >> 40);
  }
  return tokens;
}

class ForkedPattern::Packed {
 public:
  void Resize(uint32_t heads, uint32_t count, const RowBytes& row) {
    row_ = row;
    count_ = count;
    codes_.resize(size_t{heads} * count * row.codes);
    scales_.resize(size_t{heads} * count * row.scales);
    biases_.resize(size_t{heads} * count * row.biases);
  }
  void Set(uint32_t head, uint32_t at, const std::byte* row) {
    const size_t place = size_t{head} * count_ + at;
    std::memcpy(codes_.data() + place * row_.codes, row, row_.codes);
    std::memcpy(scales_.data() + place * row_.scales, row + row_.codes, row_.scales);
    std::memcpy(biases_.data() + place * row_.biases, row + row_.codes + row_.scales, row_.biases);
  }
  template <typename View>
  View As() {
    return {.codes = codes_.data(),
            .scales = scales_.data(),
            .biases = biases_.data(),
            .codes_head_stride = size_t{count_} * row_.codes,
            .codes_token_stride = row_.codes,
            .scales_head_stride = size_t{count_} * row_.scales,
            .scales_token_stride = row_.scales};
  }
  bool operator==(const Packed& other) const {
    return codes_ == other.codes_ && scales_ == other.scales_ && biases_ == other.biases_;
  }

 private:
  RowBytes row_;
  uint32_t count_ = 0;
  std::vector<std::byte> codes_, scales_, biases_;
};

ForkedPattern::ForkedPattern(const Geometry& geometry)
    : geometry_(geometry),
      row_(BytesOfRow(SpecOf(geometry).layers[0].formats[0].key, geometry.dim)) {
  const size_t longest = row_.codes + row_.scales + row_.biases;
  pattern_.resize(kPlaces + longest / sizeof(uint64_t) + 1);
  for (size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = Mix(i + 77);
}

const std::byte* ForkedPattern::Row(const ForkedName& name, uint32_t token,
                                    uint64_t tensor_of_head) const {
  const uint64_t place = Mix(PrefixOf(name, token) + tensor_of_head) % kPlaces;
  return reinterpret_cast<const std::byte*>(pattern_.data() + place);
}

void ForkedPattern::Fill(const ForkedName& name, uint32_t layer, uint32_t begin, uint32_t count,
                         Packed (&tensors)[2]) const {
  for (uint32_t tensor = 0; tensor < 2; ++tensor) {
    tensors[tensor].Resize(geometry_.kv_heads, count, row_);
    for (uint32_t head = 0; head < geometry_.kv_heads; ++head) {
      const uint64_t which = (uint64_t{layer} * 2 + tensor) * geometry_.kv_heads + head;
      for (uint32_t i = 0; i < count; ++i) {
        tensors[tensor].Set(head, i, Row(name, begin + i, which));
      }
    }
  }
}

Status ForkedPattern::Write(const ForkedName& name, uint32_t begin, Sequence* sequence) const {
  const uint32_t count = name.tokens - begin;
  if (count == 0) return {};
  Packed tensors[2];
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    Fill(name, layer, begin, count, tensors);
    Status status = sequence->WritePacked(static_cast<int>(layer), begin, count,
                                          tensors[0].As<PackedView>(), tensors[1].As<PackedView>());
    if (!status.ok()) return status;
  }
  return {};
}

bool ForkedPattern::Matches(const ForkedName& name, uint32_t tokens,
                            const Sequence& sequence) const {
  if (tokens == 0) return true;
  Packed wanted[2], seen[2];
  for (Packed& tensor : seen) tensor.Resize(geometry_.kv_heads, tokens, row_);
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    Fill(name, layer, 0, tokens, wanted);
    const Status status =
        sequence.Gather(static_cast<int>(layer), 0, tokens, seen[0].As<MutablePackedView>(),
                        seen[1].As<MutablePackedView>());
    if (!status.ok() || !(seen[0] == wanted[0]) || !(seen[1] == wanted[1])) return false;
  }
  return true;
}

}  // namespace prefixd::bench
