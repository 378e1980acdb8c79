#include "interop/llama_state.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "interop/llama_state_format.h"

namespace prefixd::interop {
namespace {

using llama::Bad;

// The sizes of one tensor. The blob has [cell][head][row], the rows have [head][cell].
struct Geometry {
  uint32_t heads = 0, tokens = 0;
  size_t row = 0;  // of one head
};

// Calls copy(offset in the blob, offset in the rows, bytes) for each head of each cell.
// order[cell] is the cell's position in the rows.
template <typename Copy>
void ForEachRow(const Geometry& g, const std::vector<uint32_t>& order, const Copy& copy) {
  for (size_t cell = 0; cell < order.size(); ++cell) {
    for (size_t head = 0; head < g.heads; ++head) {
      copy((cell * g.heads + head) * g.row, (head * g.tokens + order[cell]) * g.row, g.row);
    }
  }
}

// Does the same for transposed values: the blob has [head][channel][cell].
template <typename Copy>
void ForEachElement(const Geometry& g, const std::vector<uint32_t>& order, size_t element,
                    const Copy& copy) {
  const size_t dim = g.row / element;
  for (size_t head = 0; head < g.heads; ++head) {
    for (size_t channel = 0; channel < dim; ++channel) {
      for (size_t cell = 0; cell < order.size(); ++cell) {
        copy(((head * dim + channel) * order.size() + cell) * element,
             (head * g.tokens + order[cell]) * g.row + channel * element, element);
      }
    }
  }
}

// Returns the geometry of one tensor, or why it does not fit.
absl::StatusOr<Geometry> Fit(const LlamaTensor& tensor, uint32_t heads, uint32_t dim,
                             uint32_t tokens) {
  const absl::Status fits = quant::Validate(tensor.format, dim);
  if (!fits.ok()) return Bad(fits.message());
  const Geometry g{
      .heads = heads, .tokens = tokens, .row = quant::BytesOfStoredRow(tensor.format, dim).codes};
  if (tensor.token_bytes == heads * g.row) return g;
  return Bad("row size is ", tensor.token_bytes, ", expected ", heads * g.row);
}

// Sets the label of rows that the context rotated in blocks of `rotation`.
absl::Status Label(const char* what, uint32_t rotation, RowsOfTensor* tensor) {
  if (rotation == 0) return absl::OkStatus();
  if (rotation != quant::HadamardBlock(tensor->dim)) {
    return Bad(what, " of ", tensor->dim, " elements are rotated in blocks of ", rotation,
               ", accepted: ", quant::HadamardBlock(tensor->dim));
  }
  tensor->format = quant::Rotated(tensor->format);
  return absl::OkStatus();
}

absl::Status CheckRotation(const LlamaContext& context, const LlamaTensor& tensor, uint32_t dim) {
  if (!IsRotationUnknown(context, tensor, dim)) return absl::OkStatus();
  return Bad("version ", context.version, " does not say whether rows of ",
             quant::ToString(tensor.format), " are rotated, as version ",
             llama::kVersionWithRotation, " does");
}

template <typename Copy>
void ForEachPart(const Geometry& g, const std::vector<uint32_t>& order, size_t element,
                 const Copy& copy) {
  element == 0 ? ForEachRow(g, order, copy) : ForEachElement(g, order, element, copy);
}

struct RowsPlace {
  uint64_t at = 0;
  size_t element = 0;  // of transposed rows, else 0
};

absl::Status ReadRows(std::span<const std::byte> state, const RowsPlace& place,
                      const LlamaTensor& from, const std::vector<uint32_t>& order, uint32_t heads,
                      uint32_t dim, RowsOfTensor* to) {
  PREFIXD_ASSIGN_OR_RETURN(const Geometry g,
                           Fit(from, heads, dim, static_cast<uint32_t>(order.size())));
  to->format = from.format;
  to->dim = dim;
  to->codes.resize(from.token_bytes * order.size());
  ForEachPart(g, order, place.element, [&](size_t in_state, size_t in_rows, size_t count) {
    std::memcpy(to->codes.data() + in_rows, state.data() + place.at + in_state, count);
  });
  return absl::OkStatus();
}

void WriteRows(const RowsOfTensor& from, uint32_t heads, const std::vector<uint32_t>& order,
               const RowsPlace& place, std::vector<std::byte>* state) {
  const Geometry g{.heads = heads,
                   .tokens = static_cast<uint32_t>(order.size()),
                   .row = quant::BytesOfStoredRow(from.format, from.dim).codes};
  ForEachPart(g, order, place.element, [&](size_t in_state, size_t in_rows, size_t count) {
    std::memcpy(state->data() + place.at + in_state, from.codes.data() + in_rows, count);
  });
}

std::vector<uint32_t> InOrder(uint32_t cells) {
  std::vector<uint32_t> order(cells);
  for (uint32_t i = 0; i < cells; ++i) order[i] = i;
  return order;
}

absl::StatusOr<LlamaTensor> TensorOf(const RowsOfTensor& rows, uint32_t heads, bool transposed) {
  LlamaTensor tensor{.format = rows.format};
  tensor.format.rotation = quant::Rotation::kNone;
  if (llama::NumberOf(tensor.format) < 0) {
    return Bad("llama.cpp has no type for ", quant::ToString(rows.format));
  }
  if (transposed && tensor.format.codec != quant::Codec::kRaw) {
    return Bad("values of ", quant::ToString(rows.format), " cannot be transposed");
  }
  tensor.token_bytes = uint64_t{heads} * quant::BytesOfStoredRow(tensor.format, rows.dim).codes;
  return tensor;
}

uint32_t RotationOf(const RowsOfTensor& rows) {
  return rows.format.rotation == quant::Rotation::kNone ? 0 : quant::HadamardBlock(rows.dim);
}

absl::StatusOr<LlamaContext> ContextOf(const LlamaState& state) {
  const uint32_t cells = state.layers[0].rows;
  LlamaCache cache;
  cache.values_transposed = state.values_transposed;
  cache.key_rotation = RotationOf(state.layers[0].key);
  cache.value_rotation = RotationOf(state.layers[0].value);
  for (const KvRows& rows : state.layers) {
    if (rows.rows != cells || !rows.is_prefix()) {
      return Bad("a layer of ", rows.rows, " tokens at offset ", rows.offset, ", expected ", cells,
                 " from 0 on of each");
    }
    if (RotationOf(rows.key) != cache.key_rotation ||
        RotationOf(rows.value) != cache.value_rotation) {
      return Bad("layers are rotated in blocks of different sizes");
    }
    PREFIXD_ASSIGN_OR_RETURN(cache.keys.emplace_back(), TensorOf(rows.key, rows.kv_heads, false));
    PREFIXD_ASSIGN_OR_RETURN(cache.values.emplace_back(),
                             TensorOf(rows.value, rows.kv_heads, state.values_transposed));
  }
  LlamaContext context;
  context.caches.push_back(std::move(cache));
  return context;
}

size_t ElementOf(const LlamaCache& cache, size_t layer) {
  return cache.values_transposed ? quant::DtypeBytes(cache.values[layer].format.dtype) : 0;
}

}  // namespace

absl::StatusOr<LlamaState> ReadLlamaState(std::span<const std::byte> state,
                                          std::span<const LlamaLayerShape> shapes) {
  PREFIXD_ASSIGN_OR_RETURN(LlamaStateMap map, MapLlamaState(state));
  if (map.caches.size() != 1 || map.context.recurrent_bytes != 0) {
    return Bad("is of a model with sliding or recurrent layers, accepted: full attention");
  }
  const LlamaCache& cache = map.context.caches[0];
  const LlamaCacheMap& rows_of = map.caches[0];
  if (cache.keys.size() != shapes.size()) {
    return Bad("layer count is ", cache.keys.size(), ", expected ", shapes.size());
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(CheckRotation(map.context, cache.keys[i], shapes[i].key_dim));
    PREFIXD_RETURN_IF_ERROR(CheckRotation(map.context, cache.values[i], shapes[i].value_dim));
  }
  const std::vector<uint32_t> order = rows_of.order.empty() ? InOrder(map.length) : rows_of.order;
  LlamaState read{
      .tokens = std::move(map.tokens), .layers = {}, .values_transposed = cache.values_transposed};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LlamaLayerShape& shape = shapes[i];
    KvRows& rows = read.layers.emplace_back();
    rows.kv_heads = shape.kv_heads;
    rows.rows = rows.offset = map.length;
    PREFIXD_RETURN_IF_ERROR(ReadRows(state, {rows_of.keys[i]}, cache.keys[i], order, shape.kv_heads,
                                     shape.key_dim, &rows.key));
    PREFIXD_RETURN_IF_ERROR(ReadRows(state, {rows_of.values[i], ElementOf(cache, i)},
                                     cache.values[i], order, shape.kv_heads, shape.value_dim,
                                     &rows.value));
    PREFIXD_RETURN_IF_ERROR(Label("keys", cache.key_rotation, &rows.key));
    PREFIXD_RETURN_IF_ERROR(Label("values", cache.value_rotation, &rows.value));
  }
  return read;
}

absl::StatusOr<std::vector<std::byte>> WriteLlamaState(const LlamaState& state) {
  if (state.layers.empty() || state.layers[0].rows == 0) return Bad("no tokens to write");
  PREFIXD_ASSIGN_OR_RETURN(const LlamaContext context, ContextOf(state));
  const uint32_t cells = state.layers[0].rows;
  const std::vector<uint32_t> order = InOrder(cells);
  const std::array<uint32_t, 1> first = {0};
  const LlamaStateMap map = LayOutLlamaState(context, state.tokens, cells, first);
  std::vector<std::byte> blob(map.bytes);
  WriteLlamaHeads(map, blob);
  for (size_t i = 0; i < state.layers.size(); ++i) {
    const KvRows& rows = state.layers[i];
    const LlamaCacheMap& to = map.caches[0];
    WriteRows(rows.key, rows.kv_heads, order, {to.keys[i]}, &blob);
    WriteRows(rows.value, rows.kv_heads, order, {to.values[i], ElementOf(context.caches[0], i)},
              &blob);
  }
  return blob;
}

}  // namespace prefixd::interop
