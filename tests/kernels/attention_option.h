// What the tests of attention's options share: a layer, learned sinks for it, and what an option
// makes of a shape.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/attention_checks.h"

namespace prefixd::kernels {

// In a namespace of their own: other tests have layers too.
namespace options {

inline constexpr LayerShape kLayer{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
inline constexpr uint32_t kGroup = 3;  // query heads of a kv head
inline const std::vector<float> kSinks = {0.5f, -2, 3, 40, -std::numeric_limits<float>::infinity(),
                                          1};

struct Option {
  std::string name = {};
  uint32_t window = 0, sink_tokens = 0;
  float soft_cap = 0;
  bool sinks = false;
  float scale = 0.125f;
  double bound = kErrorBound;  // roundings of the query count for more where scores are large

  AttentionShape Of(uint32_t rows, uint32_t first) const {
    AttentionShape shape = ShapeOf(kLayer, kGroup, rows, first);
    shape.window = window;
    shape.sink_tokens = sink_tokens;
    shape.soft_cap = soft_cap;
    shape.sink_logits = sinks ? kSinks.data() : nullptr;
    shape.scale = scale;
    return shape;
  }
};

}  // namespace options
}  // namespace prefixd::kernels
