// The engine's own part, as small as it gets: a "model" whose Q, K and V are numbers drawn from
// (token, position, layer) and whose next token is drawn from the attention output.
#pragma once
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "prefixd/attention.h"

struct Qkv {
  std::vector<float> q;     // [tokens][heads][dim]
  std::vector<float> k, v;  // [heads][tokens][dim]
};

struct ToyModel {
  static constexpr int kLayers = 4;
  static constexpr uint32_t kHeads = 2, kDim = 64;

  static float Draw(uint32_t token, size_t position, uint32_t column) {
    std::minstd_rand random(token * 31 + static_cast<uint32_t>(position) * 1009 + column * 7919);
    random.discard(2);
    return static_cast<float>(random() % 2001) / 1000 - 1;
  }
  static Qkv Project(std::span<const uint32_t> tokens, size_t at, size_t count, int layer) {
    const size_t size = count * kHeads * kDim;
    Qkv out{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size)};
    for (size_t i = 0; i < size; ++i) {
      const size_t token = i / kDim % count, head = i / kDim / count, row = token * kHeads + head;
      const uint32_t column = static_cast<uint32_t>(
          ((static_cast<uint32_t>(layer) * kHeads + head) * kDim + i % kDim) * 3);
      out.k[i] = Draw(tokens[at + token], at + token, column);
      out.v[i] = Draw(tokens[at + token], at + token, column + 1);
      out.q[row * kDim + i % kDim] = Draw(tokens[at + token], at + token, column + 2);
    }
    return out;
  }
  static prefixd::AttendOptions Shape(uint32_t at, uint32_t count) {
    return {.query_rows = count, .query_heads = kHeads, .first_position = at, .scale = 0.125f};
  }
  // Mixes every bit of the last row's output into the next token and the checksum.
  static uint32_t Sample(std::span<const float> out, uint32_t* checksum) {
    for (float value : out.last(kHeads * kDim)) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      *checksum = *checksum * 31 + bits;
    }
    return *checksum % 997;
  }
};
