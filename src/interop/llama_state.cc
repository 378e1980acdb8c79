#include "interop/llama_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::interop {
namespace {

constexpr uint32_t kMagic = 0x67677371, kVersion = 2;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("llama state: ", parts...));
}

struct Type {
  int32_t number = 0;  // ggml's number of the type
  quant::TensorFormat format;
};
const std::array<Type, 8>& Types() {
  using quant::Codec;
  using quant::Dtype;
  static const std::array<Type, 8> types = {{{0, quant::RawFormat(Dtype::kF32)},
                                             {1, quant::RawFormat(Dtype::kF16)},
                                             {30, quant::RawFormat(Dtype::kBf16)},
                                             {2, quant::GgmlFormat(Codec::kQ4_0)},
                                             {3, quant::GgmlFormat(Codec::kQ4_1)},
                                             {6, quant::GgmlFormat(Codec::kQ5_0)},
                                             {7, quant::GgmlFormat(Codec::kQ5_1)},
                                             {8, quant::GgmlFormat(Codec::kQ8_0)}}};
  return types;
}

// Reads the blob from front to back.
class Input {
 public:
  explicit Input(std::span<const std::byte> blob) : rest_(blob) {}

  template <typename T>
  absl::Status Take(const char* what, T* to) {
    PREFIXD_ASSIGN_OR_RETURN(const auto bytes, TakeBytes(what, sizeof(T)));
    std::memcpy(to, bytes.data(), sizeof(T));
    return absl::OkStatus();
  }
  absl::StatusOr<std::span<const std::byte>> TakeBytes(const std::string& what, uint64_t count) {
    if (count > rest_.size()) {
      return Bad("ends in ", what, ": ", count, " bytes expected, ", rest_.size(), " are left");
    }
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
};

template <typename T>
absl::Status TakeWanted(Input& input, const char* what, T wanted) {
  T seen{};
  PREFIXD_RETURN_IF_ERROR(input.Take(what, &seen));
  if (seen == wanted) return absl::OkStatus();
  return Bad(what, " is ", seen, ", expected ", wanted);
}

// Returns `order`: cell i is at position order[i]. It is a permutation of 0 to n - 1.
absl::StatusOr<std::vector<uint32_t>> TakeCells(Input& input, uint32_t cells) {
  constexpr size_t kLeastBytes = 8;  // a cell's position and its number of sequences
  if (cells > input.left() / kLeastBytes) {
    return Bad("ends in its cells: ", cells, " of at least ", kLeastBytes, " bytes, ", input.left(),
               " are left");
  }
  std::vector<uint32_t> order;
  std::vector<bool> taken(cells);
  for (uint32_t i = 0; i < cells; ++i) {
    int32_t position = 0, sequence = 0;
    uint32_t sequences = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's position", &position));
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's sequences", &sequences));
    if (sequences > 1) return Bad("cell ", i, " is of ", sequences, " sequences, expected 1");
    if (sequences == 1) PREFIXD_RETURN_IF_ERROR(input.Take("a cell's sequence", &sequence));
    if (position < 0 || static_cast<uint32_t>(position) >= cells ||
        taken[static_cast<uint32_t>(position)]) {
      return Bad("cell ", i, " is at position ", position, ", expected each of 0 to ", cells - 1,
                 " once: a state that was shifted or windowed is not a prefix");
    }
    taken[static_cast<uint32_t>(position)] = true;
    order.push_back(static_cast<uint32_t>(position));
  }
  return order;
}

absl::StatusOr<quant::TensorFormat> TakeType(Input& input, uint32_t dim) {
  int32_t number = 0;
  PREFIXD_RETURN_IF_ERROR(input.Take("a type", &number));
  for (const Type& type : Types()) {
    if (type.number != number) continue;
    const absl::Status fits = quant::Validate(type.format, dim);
    if (!fits.ok()) return Bad(fits.message());
    return type.format;
  }
  return Bad("ggml type ", number,
             " is not known here, accepted: f32, f16, bf16, q4_0, q4_1, "
             "q5_0, q5_1, q8_0");
}

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

absl::Status TakeTensor(Input& input, const std::vector<uint32_t>& order, uint32_t heads,
                        uint32_t dim, bool transposed, RowsOfTensor* tensor) {
  PREFIXD_ASSIGN_OR_RETURN(tensor->format, TakeType(input, dim));
  tensor->dim = dim;
  const Geometry g{.heads = heads,
                   .tokens = static_cast<uint32_t>(order.size()),
                   .row = quant::BytesOfStoredRow(tensor->format, dim).codes};
  size_t element = 0;
  if (transposed) {
    if (tensor->format.codec != quant::Codec::kRaw) {
      return Bad("transposed values of ", quant::ToString(tensor->format), ", must be raw");
    }
    element = quant::DtypeBytes(tensor->format.dtype);
    PREFIXD_RETURN_IF_ERROR(
        TakeWanted<uint32_t>(input, "element size", static_cast<uint32_t>(element)));
    PREFIXD_RETURN_IF_ERROR(TakeWanted<uint32_t>(input, "n_embd_v", heads * dim));
  } else {
    PREFIXD_RETURN_IF_ERROR(TakeWanted<uint64_t>(input, "row size", heads * g.row));
  }
  PREFIXD_ASSIGN_OR_RETURN(const auto bytes,
                           input.TakeBytes("rows", uint64_t{heads} * g.row * order.size()));
  tensor->codes.resize(bytes.size());
  const auto copy = [&](size_t from, size_t to, size_t count) {
    std::memcpy(tensor->codes.data() + to, bytes.data() + from, count);
  };
  transposed ? ForEachElement(g, order, element, copy) : ForEachRow(g, order, copy);
  return absl::OkStatus();
}

// --- writing

class Output {
 public:
  template <typename T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    blob_.insert(blob_.end(), bytes, bytes + sizeof(value));
  }
  std::byte* Grow(size_t count) {
    blob_.resize(blob_.size() + count);
    return blob_.data() + blob_.size() - count;
  }
  std::vector<std::byte> Take() { return std::move(blob_); }

 private:
  std::vector<std::byte> blob_;
};

absl::Status PutTensor(const RowsOfTensor& tensor, uint32_t heads,
                       const std::vector<uint32_t>& order, bool transposed, Output* output) {
  const auto type = std::find_if(Types().begin(), Types().end(),
                                 [&](const Type& each) { return each.format == tensor.format; });
  if (type == Types().end()) {
    return Bad("llama.cpp has no type for ", quant::ToString(tensor.format));
  }
  const Geometry g{.heads = heads,
                   .tokens = static_cast<uint32_t>(order.size()),
                   .row = quant::BytesOfStoredRow(tensor.format, tensor.dim).codes};
  output->Put(type->number);
  size_t element = 0;
  if (transposed) {
    if (tensor.format.codec != quant::Codec::kRaw) {
      return Bad("values of ", quant::ToString(tensor.format), " cannot be transposed");
    }
    element = quant::DtypeBytes(tensor.format.dtype);
    output->Put(static_cast<uint32_t>(element));
    output->Put(heads * tensor.dim);
  } else {
    output->Put(uint64_t{heads} * g.row);
  }
  std::byte* const to = output->Grow(heads * g.row * order.size());
  const auto copy = [&](size_t in_blob, size_t in_rows, size_t count) {
    std::memcpy(to + in_blob, tensor.codes.data() + in_rows, count);
  };
  transposed ? ForEachElement(g, order, element, copy) : ForEachRow(g, order, copy);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaState> ReadLlamaState(std::span<const std::byte> blob,
                                          std::span<const LlamaLayerShape> shapes) {
  Input input(blob);
  LlamaState state;
  uint32_t count = 0, cells = 0, transposed = 0;
  PREFIXD_RETURN_IF_ERROR(TakeWanted<uint32_t>(input, "magic", kMagic));
  PREFIXD_RETURN_IF_ERROR(TakeWanted<uint32_t>(input, "version", kVersion));
  PREFIXD_RETURN_IF_ERROR(input.Take("the token count", &count));
  PREFIXD_ASSIGN_OR_RETURN(const auto tokens, input.TakeBytes("tokens", uint64_t{count} * 4));
  state.tokens.resize(count);
  if (count != 0) std::memcpy(state.tokens.data(), tokens.data(), tokens.size());
  PREFIXD_RETURN_IF_ERROR(TakeWanted<uint32_t>(input, "stream count", 1));
  PREFIXD_RETURN_IF_ERROR(input.Take("the cell count", &cells));
  if (cells == 0) return Bad("has no cells: there is nothing to store");
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> order, TakeCells(input, cells));
  PREFIXD_RETURN_IF_ERROR(input.Take("v_trans", &transposed));
  state.values_transposed = transposed != 0;
  PREFIXD_RETURN_IF_ERROR(
      TakeWanted<uint32_t>(input, "layer count", static_cast<uint32_t>(shapes.size())));
  for (const LlamaLayerShape& shape : shapes) {
    KvRows& rows = state.layers.emplace_back();
    rows.kv_heads = shape.kv_heads;
    rows.rows = rows.offset = cells;
    PREFIXD_RETURN_IF_ERROR(
        TakeTensor(input, order, shape.kv_heads, shape.key_dim, false, &rows.key));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(TakeTensor(input, order, shapes[i].kv_heads, shapes[i].value_dim,
                                       state.values_transposed, &state.layers[i].value));
  }
  if (input.left() != 0) return Bad(input.left(), " bytes behind the last layer");
  return state;
}

absl::StatusOr<std::vector<std::byte>> WriteLlamaState(const LlamaState& state) {
  if (state.layers.empty() || state.layers[0].rows == 0) return Bad("no tokens to write");
  const uint32_t cells = state.layers[0].rows;
  Output output;
  output.Put(kMagic);
  output.Put(kVersion);
  output.Put(static_cast<uint32_t>(state.tokens.size()));
  for (const uint32_t token : state.tokens) output.Put(token);
  output.Put(uint32_t{1});
  output.Put(cells);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < cells; ++i) {
    order.push_back(i);
    output.Put(static_cast<int32_t>(i));
    output.Put(uint32_t{1});
    output.Put(int32_t{0});
  }
  output.Put(uint32_t{state.values_transposed});
  output.Put(static_cast<uint32_t>(state.layers.size()));
  for (const KvRows& rows : state.layers) {
    if (rows.rows != cells || !rows.is_prefix()) {
      return Bad("a layer of ", rows.rows, " tokens at offset ", rows.offset, ", expected ", cells,
                 " from 0 on of each");
    }
    PREFIXD_RETURN_IF_ERROR(PutTensor(rows.key, rows.kv_heads, order, false, &output));
  }
  for (const KvRows& rows : state.layers) {
    PREFIXD_RETURN_IF_ERROR(
        PutTensor(rows.value, rows.kv_heads, order, state.values_transposed, &output));
  }
  return output.Take();
}

}  // namespace prefixd::interop
