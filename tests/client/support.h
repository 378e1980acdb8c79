// What the client's tests share: a place for a socket, a space, and K and V whose every element
// follows from token, position, layer, head, column and tensor.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "prefixd/client.h"

namespace prefixd {

class TempDirectory {
 public:
  TempDirectory() : path_("/tmp/prefixd_client_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp failed";
  }
  // What is being deleted by others at the same time does not matter.
  ~TempDirectory() {
    std::error_code gone;
    std::filesystem::remove_all(path_, gone);
  }
  const std::string& path() const { return path_; }
  std::string socket() const { return path_ + "/prefixd.sock"; }
  std::string address() const { return "unix://" + socket(); }

 private:
  std::string path_;
};

// Two sorts of layers, hence two groups; K and V differ in width.
inline SpaceSpec SmallSpace(const KvFormat& format) {
  SpaceSpec spec{.model = "test", .weights_digest = {std::byte{7}}};
  const LayerSpec wide{.kv_heads = 2, .key_dim = 64, .value_dim = 128, .formats = {format}};
  const LayerSpec narrow{.kv_heads = 3, .key_dim = 128, .value_dim = 64, .formats = {format}};
  spec.layers = {wide, narrow, wide};
  return spec;
}

inline std::vector<uint32_t> Tokens(uint32_t count, uint32_t seed) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = (i + 1) * 2654435761u % (1000 + seed) + seed;
  return tokens;
}

// [heads][tokens][dim] floats of tokens [begin, begin + count).
inline std::vector<float> Tensor(const std::vector<uint32_t>& tokens, uint32_t begin,
                                 uint32_t count, uint32_t layer, uint32_t heads, uint32_t dim,
                                 bool is_key) {
  std::vector<float> out;
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t t = begin; t < begin + count; ++t) {
      uint32_t state = tokens[t] * 31 + t * 1009 + layer * 7919 + head * 104729 + (is_key ? 1 : 0);
      for (uint32_t i = 0; i < dim; ++i) {
        state = state * 1664525 + 1013904223;
        out.push_back(static_cast<float>(state >> 8) / (1 << 23) - 1);
      }
    }
  }
  return out;
}

inline void AppendTokens(Sequence& seq, const SpaceSpec& spec, const std::vector<uint32_t>& tokens,
                         uint32_t begin, uint32_t end) {
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const LayerSpec& l = spec.layers[layer];
    const auto k = Tensor(tokens, begin, end - begin, layer, l.kv_heads, l.key_dim, true);
    const auto v = Tensor(tokens, begin, end - begin, layer, l.kv_heads, l.value_dim, false);
    const Status status = seq.Append(static_cast<int>(layer), begin, end - begin,
                                     {.data = k.data()}, {.data = v.data()});
    ASSERT_TRUE(status.ok()) << status.message;
  }
}

// Rows of one tensor of one layer, dense.
struct Packed {
  std::vector<std::byte> codes, scales, biases;
  bool operator==(const Packed&) const = default;

  Packed() = default;
  Packed(const TensorFormat& format, uint32_t heads, uint32_t dim, uint32_t tokens) {
    const RowBytes row = BytesOfRow(format, dim);
    codes.resize(size_t{row.codes} * heads * tokens);
    scales.resize(size_t{row.scales} * heads * tokens);
    biases.resize(size_t{row.biases} * heads * tokens);
  }
  MutablePackedView view() {
    return {.codes = codes.data(), .scales = scales.data(), .biases = biases.data()};
  }
  PackedView view() const {
    return {.codes = codes.data(), .scales = scales.data(), .biases = biases.data()};
  }
};

// K and V of every layer, tokens [0, count).
inline std::vector<Packed> GatherAll(const Sequence& seq, const SpaceSpec& spec, uint32_t count) {
  std::vector<Packed> all;
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    const LayerSpec& l = spec.layers[layer];
    Packed k(l.formats[0].key, l.kv_heads, l.key_dim, count);
    Packed v(l.formats[0].value, l.kv_heads, l.value_dim, count);
    const Status status = seq.Gather(static_cast<int>(layer), 0, count, k.view(), v.view());
    EXPECT_TRUE(status.ok()) << status.message;
    all.push_back(std::move(k));
    all.push_back(std::move(v));
  }
  return all;
}

}  // namespace prefixd
