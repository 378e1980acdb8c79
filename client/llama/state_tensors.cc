#include "client/llama/state_tensors.h"

#include <cstring>

#include "quant/format.h"

namespace prefixd::llama {
namespace {

// Calls copy(element in the state, its offset in dense rows) for each element of `count` tokens.
template <typename CellOf, typename Copy>
void ForEachElement(const StateTensor& tensor, uint32_t count, const CellOf& cell_of,
                    const Copy& copy) {
  const size_t channels = tensor.token_bytes / tensor.element;  // of all heads
  for (size_t channel = 0; channel < channels; ++channel) {
    std::byte* const column = tensor.rows + channel * tensor.cells * tensor.element;
    for (uint32_t i = 0; i < count; ++i) {
      copy(column + cell_of(i) * tensor.element, i * tensor.token_bytes + channel * tensor.element);
    }
  }
}

}  // namespace

StateTensors TensorsOf(const interop::LlamaCache& cache, const interop::LlamaCacheMap& map,
                       std::byte* state) {
  StateTensors tensors;
  for (size_t i = 0; i < cache.keys.size(); ++i) {
    tensors.keys.push_back({.token_bytes = cache.keys[i].token_bytes,
                            .element = 0,
                            .cells = map.cells,
                            .rows = state + map.keys[i]});
    const interop::LlamaTensor& values = cache.values[i];
    tensors.values.push_back(
        {.token_bytes = values.token_bytes,
         .element = cache.values_transposed ? quant::DtypeBytes(values.format.dtype) : 0,
         .cells = map.cells,
         .rows = state + map.values[i]});
  }
  return tensors;
}

Cells::Cells(const interop::LlamaCacheMap& map) : cell_of_(map.order.size()) {
  for (uint32_t cell = 0; cell < map.order.size(); ++cell) cell_of_[map.order[cell]] = cell;
}

void CopyRowsOut(const StateTensor& tensor, const Cells& cells, uint32_t begin, uint32_t count,
                 std::byte* rows) {
  if (tensor.element != 0) {
    ForEachElement(
        tensor, count, [&](uint32_t i) { return cells(begin + i); },
        [&](const std::byte* in_state, size_t in_rows) {
          std::memcpy(rows + in_rows, in_state, tensor.element);
        });
  } else if (cells.in_order()) {
    std::memcpy(rows, tensor.rows + begin * tensor.token_bytes, count * tensor.token_bytes);
  } else {
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(rows + i * tensor.token_bytes,
                  tensor.rows + cells(begin + i) * tensor.token_bytes, tensor.token_bytes);
    }
  }
}

void CopyRowsIn(const StateTensor& tensor, uint32_t begin, uint32_t count, const std::byte* rows) {
  if (tensor.element == 0) {
    std::memcpy(tensor.rows + begin * tensor.token_bytes, rows, count * tensor.token_bytes);
    return;
  }
  ForEachElement(
      tensor, count, [&](uint32_t i) { return begin + i; },
      [&](std::byte* in_state, size_t in_rows) {
        std::memcpy(in_state, rows + in_rows, tensor.element);
      });
}

}  // namespace prefixd::llama
