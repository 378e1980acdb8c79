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
constexpr uint32_t kCheckpointsMagic = 0x504b4353, kCheckpointsVersion = 1;
// A packed list of tokens: kPackedMark, kPackedVersion, count, tokens, count of images.
constexpr int32_t kPackedMark = -1, kPackedVersion = 1;
constexpr uint32_t kMaxStreams = 256, kMaxLayers = 4096;
constexpr size_t kMaxCaches = 2;  // full attention, sliding layers

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
  // Returns the next `count` bytes as an input of their own, whose at() counts as this one's does,
  // and passes over them. Requires: count <= left().
  Input Part(uint64_t count) {
    Input part = *this;
    at_ += count;
    part.state_ = state_.first(at_);
    return part;
  }
  bool Next(uint32_t value) const {
    return left() >= sizeof(value) && std::memcmp(state_.data() + at_, &value, sizeof(value)) == 0;
  }

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

// Sets `first` and the order of `cells` cells: each token of a range once.
absl::Status TakeCells(Input& input, uint32_t cells, LlamaCacheMap* map) {
  constexpr size_t kLeastBytes = 8;  // a cell's position and its number of sequences
  if (cells > input.left() / kLeastBytes) {
    return Bad("ends in its cells: ", cells, " of at least ", kLeastBytes, " bytes, ", input.left(),
               " are left");
  }
  std::vector<int32_t> positions(cells);
  for (uint32_t i = 0; i < cells; ++i) {
    uint32_t sequences = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's position", &positions[i]));
    PREFIXD_RETURN_IF_ERROR(input.Take("a cell's sequences", &sequences));
    if (sequences > 1) return Bad("cell ", i, " is of ", sequences, " sequences, expected 1");
    PREFIXD_RETURN_IF_ERROR(input.Skip("a cell's sequence", sequences * sizeof(int32_t)));
  }
  const int32_t first = *std::min_element(positions.begin(), positions.end());
  std::vector<bool> taken(cells);
  bool in_order = true;
  for (uint32_t i = 0; i < cells; ++i) {
    const int64_t token = int64_t{positions[i]} - first;
    if (first < 0 || token >= cells || taken[static_cast<size_t>(token)]) {
      return Bad("cell ", i, " is at position ", positions[i], ", expected each of ", first, " to ",
                 int64_t{first} + cells - 1, " once");
    }
    taken[static_cast<size_t>(token)] = true;
    map->order.push_back(static_cast<uint32_t>(token));
    in_order = in_order && token == i;
  }
  map->first = static_cast<uint32_t>(first);
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

absl::Status TakeStream(Input& input, uint32_t cells, uint32_t version, LlamaCache* cache,
                        LlamaCacheMap* map) {
  uint32_t transposed = 0, layers = 0;
  PREFIXD_RETURN_IF_ERROR(TakeCells(input, cells, map));
  PREFIXD_RETURN_IF_ERROR(input.Take("v_trans", &transposed));
  PREFIXD_RETURN_IF_ERROR(input.Take("layer count", &layers));
  if (layers == 0 || layers > kMaxLayers) {
    return Bad("layer count is ", layers, ", expected 1 to ", kMaxLayers);
  }
  if (version >= 4) {
    PREFIXD_RETURN_IF_ERROR(input.Take("the rotation of keys", &cache->key_rotation));
    PREFIXD_RETURN_IF_ERROR(input.Take("the rotation of values", &cache->value_rotation));
  }
  cache->values_transposed = transposed != 0;
  PREFIXD_RETURN_IF_ERROR(TakeTensors(input, layers, cells, false, &cache->keys, &map->keys));
  return TakeTensors(input, layers, cells, cache->values_transposed, &cache->values, &map->values);
}

struct TakenCache {
  LlamaCache cache;
  LlamaCacheMap map;
};
absl::StatusOr<TakenCache> TakeCache(Input& input, uint32_t version) {
  TakenCache taken;
  PREFIXD_RETURN_IF_ERROR(input.Take("stream count", &taken.cache.streams));
  if (taken.cache.streams == 0 || taken.cache.streams > kMaxStreams) {
    return Bad("stream count is ", taken.cache.streams, ", expected 1 to ", kMaxStreams);
  }
  for (uint32_t stream = 0; stream < taken.cache.streams; ++stream) {
    uint32_t cells = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("the cell count", &cells));
    if (cells == 0) continue;
    if (taken.map.cells != 0) return Bad("holds cells in stream ", stream, " and in one before it");
    PREFIXD_RETURN_IF_ERROR(TakeStream(input, cells, version, &taken.cache, &taken.map));
  }
  if (taken.map.cells == 0) return Bad("has no cells: there is nothing to store");
  return taken;
}

// Takes the next cache of the state: that of all tokens, or one that ends where it ends.
absl::Status TakeNextCache(Input& input, LlamaStateMap* state) {
  PREFIXD_ASSIGN_OR_RETURN(TakenCache taken, TakeCache(input, state->context.version));
  const uint32_t end = taken.map.first + taken.map.cells;
  if (state->caches.empty() && taken.map.first != 0) {
    return Bad("begins at position ", taken.map.first,
               ": a state that was shifted is not a prefix");
  }
  if (!state->caches.empty() && end != state->length) {
    return Bad("has caches of ", state->length, " and of ", end, " tokens");
  }
  state->length = end;
  state->context.caches.push_back(std::move(taken.cache));
  state->caches.push_back(std::move(taken.map));
  return absl::OkStatus();
}

// States of recurrent layers, which nobody here needs to understand.
struct TakenRecurrent {
  uint64_t begin = 0, bytes = 0;
};
// Takes one cell, whose position is that of the last of `length` tokens, and its states: a count,
// the number of layers, and tensors of a type, a row size and a row, up to the end or to
// checkpoints.
absl::StatusOr<TakenRecurrent> TakeRecurrent(Input& input, uint32_t length) {
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted<uint32_t>("the count of recurrent cells", 1));
  PREFIXD_RETURN_IF_ERROR(
      input.TakeWanted("a recurrent cell's position", static_cast<int32_t>(length) - 1));
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted<uint32_t>("a recurrent cell's sequences", 0));
  const uint64_t begin = input.at();
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted<uint32_t>("the transposition of states", 0));
  PREFIXD_RETURN_IF_ERROR(input.Skip("the layer count", sizeof(uint32_t)));
  do {
    uint64_t row = 0;
    PREFIXD_RETURN_IF_ERROR(input.Skip("a state's type", sizeof(int32_t)));
    PREFIXD_RETURN_IF_ERROR(input.Take("a state's size", &row));
    PREFIXD_RETURN_IF_ERROR(input.Skip("a state", row));
  } while (input.left() != 0 && !input.Next(kCheckpointsMagic));
  return TakenRecurrent{.begin = begin, .bytes = input.at() - begin};
}

// Takes a checkpoint: a state in memory without the cache of all tokens.
absl::StatusOr<LlamaCheckpoint> TakeCheckpoint(Input input, uint32_t length,
                                               const LlamaContext& context) {
  LlamaCheckpoint checkpoint{.length = length, .sliding = {}, .recurrent = 0};
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted("a checkpoint's magic", kMemoryMagic));
  PREFIXD_RETURN_IF_ERROR(input.Skip("the sequence id", sizeof(int32_t)));
  if (context.caches.size() > 1) {
    PREFIXD_ASSIGN_OR_RETURN(TakenCache taken, TakeCache(input, context.version));
    if (taken.cache != context.caches[1] || taken.map.first + taken.map.cells != length) {
      return Bad("a checkpoint of ", length, " tokens has another sliding cache");
    }
    checkpoint.sliding = std::move(taken.map);
  }
  if (context.recurrent_bytes != 0) {
    PREFIXD_ASSIGN_OR_RETURN(const TakenRecurrent taken, TakeRecurrent(input, length));
    if (taken.bytes != context.recurrent_bytes) {
      return Bad("a checkpoint of ", length, " tokens has other recurrent states");
    }
    checkpoint.recurrent = taken.begin;
  }
  if (input.left() != 0) return Bad("a checkpoint is too long");
  return checkpoint;
}

// Takes what a server appended. For each checkpoint: its tokens, first and last position, the size
// of its state and the state, then the sizes of two states of draft models and those.
absl::Status TakeCheckpoints(Input& input, LlamaStateMap* state) {
  uint32_t version = 0, count = 0;
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted("the magic of checkpoints", kCheckpointsMagic));
  PREFIXD_RETURN_IF_ERROR(input.Take("the version of checkpoints", &version));
  if (version != kCheckpointsVersion) return input.Skip("checkpoints", input.left());
  PREFIXD_RETURN_IF_ERROR(input.Take("the count of checkpoints", &count));
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t tokens = 0, bytes = 0;
    PREFIXD_RETURN_IF_ERROR(input.Take("a checkpoint's tokens", &tokens));
    PREFIXD_RETURN_IF_ERROR(input.Skip("a checkpoint's positions", 2 * sizeof(int32_t)));
    PREFIXD_RETURN_IF_ERROR(input.Take("a checkpoint's size", &bytes));
    if (bytes > input.left()) {
      return Bad("ends in checkpoint ", i, ": ", bytes, " bytes expected, ", input.left(),
                 " are left");
    }
    const Input part = input.Part(bytes);
    if (tokens != 0 && tokens < state->length) {
      absl::StatusOr<LlamaCheckpoint> taken =
          TakeCheckpoint(part, static_cast<uint32_t>(tokens), state->context);
      if (taken.ok()) state->checkpoints.push_back(*std::move(taken));
    }
    for (int draft = 0; draft < 2; ++draft) {
      PREFIXD_RETURN_IF_ERROR(input.Take("the size of a draft model's state", &bytes));
      PREFIXD_RETURN_IF_ERROR(input.Skip("a draft model's state", bytes));
    }
  }
  return absl::OkStatus();
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

void PutCache(const LlamaCache& cache, uint32_t version, LlamaCacheMap* map, bool place,
              Output& output) {
  output.Put(cache.streams);
  output.Put(map->cells);
  for (uint32_t i = 0; i < map->cells; ++i) {
    output.Put(static_cast<int32_t>(map->first + i));
    output.Put(uint32_t{1});
    output.Put(int32_t{0});
  }
  output.Put(uint32_t{cache.values_transposed});
  output.Put(static_cast<uint32_t>(cache.keys.size()));
  if (version >= 4) {
    output.Put(cache.key_rotation);
    output.Put(cache.value_rotation);
  }
  PutTensors(cache.keys, map->cells, false, output, place ? &map->keys : nullptr);
  PutTensors(cache.values, map->cells, cache.values_transposed, output,
             place ? &map->values : nullptr);
  for (uint32_t i = 1; i < cache.streams; ++i) output.Put(uint32_t{0});
}

// Writes the heads of `map`. Sets the places of rows in it if `place`.
void PutHeads(LlamaStateMap* map, bool place, Output& output) {
  const LlamaContext& context = map->context;
  output.Put(context.in_memory ? kMemoryMagic : kFileMagic);
  output.Put(context.in_memory ? uint32_t{0} : context.version);  // in memory: the sequence id
  if (!context.in_memory) PutTokens(*map, output);
  for (size_t i = 0; i < map->caches.size(); ++i) {
    PutCache(context.caches[i], context.version, &map->caches[i], place, output);
  }
  if (context.recurrent_bytes == 0) return;
  output.Put(uint32_t{1});
  output.Put(static_cast<int32_t>(map->length) - 1);
  output.Put(uint32_t{0});
  if (place) map->recurrent = output.at();
  output.Skip(context.recurrent_bytes);
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
  if (NumberOf(tensor.format) < 0) {
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

absl::StatusOr<LlamaStateMap> MapLlamaState(std::span<const std::byte> state) {
  Input input(state);
  LlamaStateMap map;
  PREFIXD_RETURN_IF_ERROR(TakeStart(input, &map));
  PREFIXD_RETURN_IF_ERROR(Unpack(&map));
  PREFIXD_RETURN_IF_ERROR(TakeNextCache(input, &map));
  while (input.left() != 0 && !input.Next(kCheckpointsMagic)) {
    // What is no cache may be recurrent states, which come last.
    const Input rest = input;
    if (map.caches.size() < kMaxCaches && TakeNextCache(input, &map).ok()) continue;
    input = rest;
    const absl::StatusOr<TakenRecurrent> states = TakeRecurrent(input, map.length);
    if (!states.ok()) {
      return Bad(rest.left(),
                 " bytes behind the last layer, neither of sliding layers nor of recurrent ones");
    }
    map.recurrent = states->begin;
    map.context.recurrent_bytes = states->bytes;
    break;
  }
  if (input.left() != 0) PREFIXD_RETURN_IF_ERROR(TakeCheckpoints(input, &map));
  if (input.left() != 0) return Bad(input.left(), " bytes behind the checkpoints");
  map.bytes = input.at();
  return map;
}

LlamaStateMap CutLlamaState(const LlamaStateMap& map, const LlamaCheckpoint& at) {
  LlamaStateMap cut = map;
  cut.tokens.resize(std::min<size_t>(cut.tokens.size(), at.length));
  cut.length = at.length;
  if (cut.caches.size() > 1) cut.caches[1] = at.sliding;
  cut.recurrent = at.recurrent;
  cut.checkpoints.clear();
  return cut;
}

LlamaStateMap LayOutLlamaState(const LlamaContext& context, std::span<const uint32_t> tokens,
                               uint32_t length, std::span<const uint32_t> first) {
  LlamaStateMap map;
  map.context = context;
  map.tokens.assign(tokens.begin(), tokens.end());
  map.length = length;
  for (size_t i = 0; i < context.caches.size(); ++i) {
    LlamaCacheMap& cache = map.caches.emplace_back();
    cache.first = first[i];
    cache.cells = length - first[i];
  }
  Output count(nullptr);
  PutHeads(&map, true, count);
  map.bytes = count.at();
  return map;
}

void WriteLlamaHeads(const LlamaStateMap& map, std::span<std::byte> state) {
  Output output(state.data());
  LlamaStateMap heads = map;
  PutHeads(&heads, false, output);
}

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
