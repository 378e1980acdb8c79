// K and V in a mapped state of llama.cpp, and copies of their rows.
//
// Functions on memory that the caller keeps alive; nothing is checked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "interop/llama_state.h"

namespace prefixd::llama {

// K or V of one layer in a state: [cell][row of all heads], or [channel][cell] if transposed.
struct StateTensor {
  size_t token_bytes = 0;  // of all heads
  size_t element = 0;      // bytes of one, of transposed values; else 0
  uint32_t cells = 0;
  std::byte* rows = nullptr;
};

struct StateTensors {
  std::vector<StateTensor> keys, values;  // of each layer
};
StateTensors TensorsOf(const interop::LlamaCache& cache, const interop::LlamaCacheMap& map,
                       std::byte* state);

// In which cell each token of a saved cache stands; tokens count from the cache's first.
class Cells {
 public:
  explicit Cells(const interop::LlamaCacheMap& map);
  bool in_order() const { return cell_of_.empty(); }
  uint32_t operator()(uint32_t token) const { return in_order() ? token : cell_of_[token]; }

 private:
  std::vector<uint32_t> cell_of_;
};

// Copies tokens [begin, begin + count) to rows of all heads, one behind the other.
void CopyRowsOut(const StateTensor& tensor, const Cells& cells, uint32_t begin, uint32_t count,
                 std::byte* rows);
// Copies such rows to the cells from `begin` on.
void CopyRowsIn(const StateTensor& tensor, uint32_t begin, uint32_t count, const std::byte* rows);

}  // namespace prefixd::llama
