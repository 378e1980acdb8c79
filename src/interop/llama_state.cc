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

constexpr uint32_t kFileMagic = 0x67677371, kMemoryMagic = 0xaf143cd8;
// A packed list of tokens: kPackedMark, kPackedVersion, count, tokens, count of images.
constexpr int32_t kPackedMark = -1, kPackedVersion = 1;
constexpr uint32_t kMaxStreams = 256, kMaxLayers = 4096;

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

absl::StatusOr<quant::TensorFormat> FormatOf(int32_t number) {
  for (const Type& type : Types()) {
    if (type.number == number) return type.format;
  }
  return Bad("ggml type ", number,
             " is not known here, accepted: f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0");
}
int32_t NumberOf(const quant::TensorFormat& format) {
  const auto type = std::find_if(Types().begin(), Types().end(),
                                 [&](const Type& each) { return each.format == format; });
  return type == Types().end() ? -1 : type->number;
}

// --- reading

// Reads a state from front to back.
class Input {
 public:
  explicit Input(std::span<const std::byte> state) : state_(state) {}

  template <typename T>
  absl::Status Take(const char* what, T* to) {
    PREFIXD_RETURN_IF_ERROR(Skip(what, sizeof(T)));
    std::memcpy(to, state_.data() + at_ - sizeof(T), sizeof(T));
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status TakeWanted(const char* what, T wanted) {
    T seen{};
    PREFIXD_RETURN_IF_ERROR(Take(what, &seen));
    if (seen == wanted) return absl::OkStatus();
    return Bad(what, " is ", seen, ", expected ", wanted);
  }
  absl::Status Skip(const char* what, uint64_t count) {
    if (count > left()) {
      return Bad("ends in ", what, ": ", count, " bytes expected, ", left(), " are left");
    }
    at_ += count;
    return absl::OkStatus();
  }
  uint64_t at() const { return at_; }
  uint64_t left() const { return state_.size() - at_; }

 private:
  std::span<const std::byte> state_;
  uint64_t at_ = 0;
};

// Takes what stands before the streams, and the tokens if the state has them.
absl::Status TakeStart(Input& input, LlamaStateMap* map) {
  uint32_t magic = 0, count = 0;
  PREFIXD_RETURN_IF_ERROR(input.Take("magic", &magic));
  LlamaContext& context = map->context;
  if (magic == kMemoryMagic) {
    context.in_memory = true;
    return input.Skip("the sequence id", sizeof(int32_t));
  }
  if (magic != kFileMagic) {
    return Bad("magic is ", magic, ", expected ", kFileMagic, " (a file) or ", kMemoryMagic);
  }
  PREFIXD_RETURN_IF_ERROR(input.Take("version", &context.version));
  if (context.version < kOldestLlamaVersion || context.version > kNewestLlamaVersion) {
    return Bad("version ", context.version, " is not known here, accepted: ", kOldestLlamaVersion,
               " to ", kNewestLlamaVersion);
  }
  PREFIXD_RETURN_IF_ERROR(input.Take("the token count", &count));
  if (count > input.left() / sizeof(int32_t)) {
    return Bad("ends in its tokens: ", count, " expected, ", input.left(), " bytes are left");
  }
  map->tokens.resize(count);
  for (uint32_t& token : map->tokens) PREFIXD_RETURN_IF_ERROR(input.Take("a token", &token));
  return absl::OkStatus();
}

// No vocabulary has negative tokens; -1 stands for an image.
absl::Status CheckTokens(const std::vector<uint32_t>& tokens) {
  for (const uint32_t token : tokens) {
    if (static_cast<int32_t>(token) < 0) {
      return Bad("token ", static_cast<int32_t>(token), ", accepted: 0 and above");
    }
  }
  return absl::OkStatus();
}

// Replaces a packed list by its tokens.
absl::Status Unpack(LlamaStateMap* map) {
  std::vector<uint32_t>& list = map->tokens;
  if (list.empty() || static_cast<int32_t>(list[0]) != kPackedMark) return CheckTokens(list);
  constexpr size_t kAround = 4;  // mark, version, count; count of images
  if (list.size() < kAround || static_cast<int32_t>(list[1]) != kPackedVersion) {
    return Bad("packed tokens of version ", list.size() < 2 ? 0 : static_cast<int32_t>(list[1]),
               " are not known here, accepted: ", kPackedVersion);
  }
  const uint32_t count = list[2];
  if (count > list.size() - kAround) {
    return Bad(count, " packed tokens do not stand in a list of ", list.size());
  }
  const uint32_t images = list[kAround - 1 + count];
  if (images != 0) return Bad("holds ", images, " images or other media, accepted: tokens alone");
  if (list.size() != kAround + count) {
    return Bad("a packed list of ", list.size(), " for ", count, " tokens");
  }
  list.pop_back();
  list.erase(list.begin(), list.begin() + (kAround - 1));
  map->context.packed_tokens = true;
  return CheckTokens(list);
}

// Sets the order of `cells` cells: a permutation of 0 to n - 1, empty if each is its own.
absl::Status TakeCells(Input& input, uint32_t cells, LlamaStateMap* map) {
  constexpr size_t kLeastBytes = 8;  // a cell's position and its number of sequences
  if (cells > input.left() / kLeastBytes) {
    return Bad("ends in its cells: ", cells, " of at least ", kLeastBytes, " bytes, ", input.left(),
               " are left");
  }
  std::vector<bool> taken(cells);
  bool in_order = true;
  for (uint32_t i = 0; i < cells; ++i) {
    int32_t position = 0;
    uint32_t sequences = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's position", &position));
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's sequences", &sequences));
    if (sequences > 1) return Bad("cell ", i, " is of ", sequences, " sequences, expected 1");
    PREFIXD_RETURN_IF_ERROR(input.Skip("a cell's sequence", sequences * sizeof(int32_t)));
    if (position < 0 || static_cast<uint32_t>(position) >= cells ||
        taken[static_cast<uint32_t>(position)]) {
      return Bad("cell ", i, " is at position ", position, ", expected each of 0 to ", cells - 1,
                 " once: a state that was shifted or windowed is not a prefix");
    }
    taken[static_cast<uint32_t>(position)] = true;
    map->order.push_back(static_cast<uint32_t>(position));
    in_order = in_order && map->order.back() == i;
  }
  map->cells = cells;
  if (in_order) map->order.clear();
  return absl::OkStatus();
}

absl::StatusOr<LlamaTensor> TakeTensor(Input& input, bool transposed) {
  int32_t number = 0;
  LlamaTensor tensor;
  PREFIXD_RETURN_IF_ERROR(input.Take("a type", &number));
  PREFIXD_ASSIGN_OR_RETURN(tensor.format, FormatOf(number));
  if (!transposed) {
    PREFIXD_RETURN_IF_ERROR(input.Take("row size", &tensor.token_bytes));
    return tensor;
  }
  if (tensor.format.codec != quant::Codec::kRaw) {
    return Bad("transposed values of ", quant::ToString(tensor.format), ", must be raw");
  }
  const uint32_t element = quant::DtypeBytes(tensor.format.dtype);
  uint32_t channels = 0;
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted("element size", element));
  PREFIXD_RETURN_IF_ERROR(input.Take("n_embd_v", &channels));
  tensor.token_bytes = uint64_t{channels} * element;
  return tensor;
}

// Takes the heads of `layers` tensors and passes over their rows.
absl::Status TakeTensors(Input& input, uint32_t layers, uint32_t cells, bool transposed,
                         std::vector<LlamaTensor>* tensors, std::vector<uint64_t>* rows) {
  for (uint32_t i = 0; i < layers; ++i) {
    PREFIXD_ASSIGN_OR_RETURN(tensors->emplace_back(), TakeTensor(input, transposed));
    rows->push_back(input.at());
    const uint64_t token_bytes = tensors->back().token_bytes;
    if (token_bytes > input.left() / cells) {
      return Bad("ends in rows: ", cells, " of ", token_bytes, " bytes expected, ", input.left(),
                 " bytes are left");
    }
    PREFIXD_RETURN_IF_ERROR(input.Skip("rows", token_bytes * cells));
  }
  return absl::OkStatus();
}

absl::Status TakeStream(Input& input, uint32_t cells, LlamaStateMap* map) {
  LlamaContext& context = map->context;
  uint32_t transposed = 0, layers = 0;
  PREFIXD_RETURN_IF_ERROR(TakeCells(input, cells, map));
  PREFIXD_RETURN_IF_ERROR(input.Take("v_trans", &transposed));
  PREFIXD_RETURN_IF_ERROR(input.Take("layer count", &layers));
  if (layers == 0 || layers > kMaxLayers) {
    return Bad("layer count is ", layers, ", expected 1 to ", kMaxLayers);
  }
  if (context.version >= 4) {
    PREFIXD_RETURN_IF_ERROR(input.Take("the rotation of keys", &context.key_rotation));
    PREFIXD_RETURN_IF_ERROR(input.Take("the rotation of values", &context.value_rotation));
  }
  context.values_transposed = transposed != 0;
  PREFIXD_RETURN_IF_ERROR(TakeTensors(input, layers, cells, false, &context.keys, &map->keys));
  return TakeTensors(input, layers, cells, context.values_transposed, &context.values,
                     &map->values);
}

// --- writing

// Writes the heads of a state from front to back, or only counts them.
class Output {
 public:
  explicit Output(std::byte* state) : state_(state) {}
  template <typename T>
  void Put(T value) {
    if (state_ != nullptr) std::memcpy(state_ + at_, &value, sizeof(value));
    at_ += sizeof(value);
  }
  void Skip(uint64_t count) { at_ += count; }
  uint64_t at() const { return at_; }

 private:
  std::byte* const state_;  // null: only counts
  uint64_t at_ = 0;
};

void PutTokens(const LlamaStateMap& map, Output& output) {
  const bool packed = map.context.packed_tokens;
  const auto count = static_cast<uint32_t>(map.tokens.size());
  output.Put(packed ? count + 4 : count);
  if (packed) {
    output.Put(kPackedMark);
    output.Put(kPackedVersion);
    output.Put(count);
  }
  for (const uint32_t token : map.tokens) output.Put(token);
  if (packed) output.Put(uint32_t{0});
}

void PutTensors(const std::vector<LlamaTensor>& tensors, uint32_t cells, bool transposed,
                Output& output, std::vector<uint64_t>* rows) {
  for (const LlamaTensor& tensor : tensors) {
    output.Put(NumberOf(tensor.format));
    if (transposed) {
      const uint32_t element = quant::DtypeBytes(tensor.format.dtype);
      output.Put(element);
      output.Put(static_cast<uint32_t>(tensor.token_bytes / element));
    } else {
      output.Put(tensor.token_bytes);
    }
    if (rows != nullptr) rows->push_back(output.at());
    output.Skip(tensor.token_bytes * cells);
  }
}

// Writes the heads of `map`. Sets the places of rows in `placed`, unless that is null.
void PutHeads(const LlamaStateMap& map, Output& output, LlamaStateMap* placed) {
  const LlamaContext& context = map.context;
  output.Put(context.in_memory ? kMemoryMagic : kFileMagic);
  output.Put(context.in_memory ? uint32_t{0} : context.version);  // in memory: the sequence id
  if (!context.in_memory) PutTokens(map, output);
  output.Put(context.streams);
  output.Put(map.cells);
  for (uint32_t i = 0; i < map.cells; ++i) {
    output.Put(static_cast<int32_t>(i));
    output.Put(uint32_t{1});
    output.Put(int32_t{0});
  }
  output.Put(uint32_t{context.values_transposed});
  output.Put(static_cast<uint32_t>(context.keys.size()));
  if (context.version >= 4) {
    output.Put(context.key_rotation);
    output.Put(context.value_rotation);
  }
  PutTensors(context.keys, map.cells, false, output, placed == nullptr ? nullptr : &placed->keys);
  PutTensors(context.values, map.cells, context.values_transposed, output,
             placed == nullptr ? nullptr : &placed->values);
  for (uint32_t i = 1; i < context.streams; ++i) output.Put(uint32_t{0});
}

// --- rows

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
      .heads = heads, .tokens = tokens, .row = quant::BytesOfRow(tensor.format, dim).codes};
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
                   .row = quant::BytesOfRow(from.format, from.dim).codes};
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
  if (NumberOf(tensor.format) < 0) {
    return Bad("llama.cpp has no type for ", quant::ToString(rows.format));
  }
  if (transposed && tensor.format.codec != quant::Codec::kRaw) {
    return Bad("values of ", quant::ToString(rows.format), " cannot be transposed");
  }
  tensor.token_bytes = uint64_t{heads} * quant::BytesOfRow(tensor.format, rows.dim).codes;
  return tensor;
}

uint32_t RotationOf(const RowsOfTensor& rows) {
  return rows.format.rotation == quant::Rotation::kNone ? 0 : quant::HadamardBlock(rows.dim);
}

absl::StatusOr<LlamaContext> ContextOf(const LlamaState& state) {
  const uint32_t cells = state.layers[0].rows;
  LlamaContext context;
  context.values_transposed = state.values_transposed;
  context.key_rotation = RotationOf(state.layers[0].key);
  context.value_rotation = RotationOf(state.layers[0].value);
  for (const KvRows& rows : state.layers) {
    if (rows.rows != cells || !rows.is_prefix()) {
      return Bad("a layer of ", rows.rows, " tokens at offset ", rows.offset, ", expected ", cells,
                 " from 0 on of each");
    }
    if (RotationOf(rows.key) != context.key_rotation ||
        RotationOf(rows.value) != context.value_rotation) {
      return Bad("layers are rotated in blocks of different sizes");
    }
    PREFIXD_ASSIGN_OR_RETURN(context.keys.emplace_back(), TensorOf(rows.key, rows.kv_heads, false));
    PREFIXD_ASSIGN_OR_RETURN(context.values.emplace_back(),
                             TensorOf(rows.value, rows.kv_heads, state.values_transposed));
  }
  return context;
}

size_t ElementOf(const LlamaStateMap& map, size_t layer) {
  return map.context.values_transposed ? quant::DtypeBytes(map.context.values[layer].format.dtype)
                                       : 0;
}

}  // namespace

absl::StatusOr<LlamaStateMap> MapLlamaState(std::span<const std::byte> state) {
  Input input(state);
  LlamaStateMap map;
  PREFIXD_RETURN_IF_ERROR(TakeStart(input, &map));
  PREFIXD_RETURN_IF_ERROR(Unpack(&map));
  PREFIXD_RETURN_IF_ERROR(input.Take("stream count", &map.context.streams));
  if (map.context.streams == 0 || map.context.streams > kMaxStreams) {
    return Bad("stream count is ", map.context.streams, ", expected 1 to ", kMaxStreams);
  }
  for (uint32_t stream = 0; stream < map.context.streams; ++stream) {
    uint32_t cells = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("the cell count", &cells));
    if (cells == 0) continue;
    if (map.cells != 0) return Bad("holds cells in stream ", stream, " and in one before it");
    PREFIXD_RETURN_IF_ERROR(TakeStream(input, cells, &map));
  }
  if (map.cells == 0) return Bad("has no cells: there is nothing to store");
  if (input.left() != 0) {
    return Bad(input.left(),
               " bytes behind the last layer: a model with sliding or recurrent "
               "layers, or a damaged state");
  }
  map.bytes = input.at();
  return map;
}

LlamaStateMap LayOutLlamaState(const LlamaContext& context, std::span<const uint32_t> tokens,
                               uint32_t cells) {
  LlamaStateMap map;
  map.context = context;
  map.tokens.assign(tokens.begin(), tokens.end());
  map.cells = cells;
  Output count(nullptr);
  PutHeads(map, count, &map);
  map.bytes = count.at();
  return map;
}

void WriteLlamaHeads(const LlamaStateMap& map, std::span<std::byte> state) {
  Output output(state.data());
  PutHeads(map, output, nullptr);
}

absl::StatusOr<LlamaState> ReadLlamaState(std::span<const std::byte> state,
                                          std::span<const LlamaLayerShape> shapes) {
  PREFIXD_ASSIGN_OR_RETURN(LlamaStateMap map, MapLlamaState(state));
  const LlamaContext& context = map.context;
  if (context.keys.size() != shapes.size()) {
    return Bad("layer count is ", context.keys.size(), ", expected ", shapes.size());
  }
  const std::vector<uint32_t> order = map.order.empty() ? InOrder(map.cells) : map.order;
  LlamaState read{.tokens = std::move(map.tokens),
                  .layers = {},
                  .values_transposed = context.values_transposed};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const LlamaLayerShape& shape = shapes[i];
    KvRows& rows = read.layers.emplace_back();
    rows.kv_heads = shape.kv_heads;
    rows.rows = rows.offset = map.cells;
    PREFIXD_RETURN_IF_ERROR(ReadRows(state, {map.keys[i]}, context.keys[i], order, shape.kv_heads,
                                     shape.key_dim, &rows.key));
    PREFIXD_RETURN_IF_ERROR(ReadRows(state, {map.values[i], ElementOf(map, i)}, context.values[i],
                                     order, shape.kv_heads, shape.value_dim, &rows.value));
    PREFIXD_RETURN_IF_ERROR(Label("keys", context.key_rotation, &rows.key));
    PREFIXD_RETURN_IF_ERROR(Label("values", context.value_rotation, &rows.value));
  }
  return read;
}

absl::StatusOr<std::vector<std::byte>> WriteLlamaState(const LlamaState& state) {
  if (state.layers.empty() || state.layers[0].rows == 0) return Bad("no tokens to write");
  PREFIXD_ASSIGN_OR_RETURN(const LlamaContext context, ContextOf(state));
  const uint32_t cells = state.layers[0].rows;
  const std::vector<uint32_t> order = InOrder(cells);
  const LlamaStateMap map = LayOutLlamaState(context, state.tokens, cells);
  std::vector<std::byte> blob(map.bytes);
  WriteLlamaHeads(map, blob);
  for (size_t i = 0; i < state.layers.size(); ++i) {
    const KvRows& rows = state.layers[i];
    WriteRows(rows.key, rows.kv_heads, order, {map.keys[i]}, &blob);
    WriteRows(rows.value, rows.kv_heads, order, {map.values[i], ElementOf(map, i)}, &blob);
  }
  return blob;
}

}  // namespace prefixd::interop
