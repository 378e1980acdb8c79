#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/status.h"
#include "interop/llama_state.h"
#include "interop/llama_state_format.h"

namespace prefixd::interop {
namespace {

using llama::Bad;

constexpr uint32_t kMaxStreams = 256, kMaxLayers = 4096;
constexpr size_t kMaxCaches = 2;  // full attention, sliding layers

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
  if (magic == llama::kMemoryMagic) {
    context.in_memory = true;
    return input.Skip("the sequence id", sizeof(int32_t));
  }
  if (magic != llama::kFileMagic) {
    return Bad("magic is ", magic, ", expected ", llama::kFileMagic, " (a file) or ",
               llama::kMemoryMagic);
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
  if (list.empty() || static_cast<int32_t>(list[0]) != llama::kPackedMark) return CheckTokens(list);
  constexpr size_t kAround = 4;  // mark, version, count; count of images
  if (list.size() < kAround || static_cast<int32_t>(list[1]) != llama::kPackedVersion) {
    return Bad("packed tokens of version ", list.size() < 2 ? 0 : static_cast<int32_t>(list[1]),
               " are not known here, accepted: ", llama::kPackedVersion);
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
  PREFIXD_ASSIGN_OR_RETURN(tensor.format, llama::FormatOf(number));
  if (!transposed) {
    PREFIXD_RETURN_IF_ERROR(input.Take("row size", &tensor.token_bytes));
    if (tensor.token_bytes == 0) return Bad("row size is 0");
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
  if (version >= llama::kVersionWithRotation) {
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
  } while (input.left() != 0 && !input.Next(llama::kCheckpointsMagic));
  return TakenRecurrent{.begin = begin, .bytes = input.at() - begin};
}

// Takes a checkpoint: a state in memory without the cache of all tokens.
absl::StatusOr<LlamaCheckpoint> TakeCheckpoint(Input input, uint32_t length,
                                               const LlamaContext& context) {
  LlamaCheckpoint checkpoint{.length = length, .sliding = {}, .recurrent = 0};
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted("a checkpoint's magic", llama::kMemoryMagic));
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
  PREFIXD_RETURN_IF_ERROR(input.TakeWanted("the magic of checkpoints", llama::kCheckpointsMagic));
  PREFIXD_RETURN_IF_ERROR(input.Take("the version of checkpoints", &version));
  if (version != llama::kCheckpointsVersion) return input.Skip("checkpoints", input.left());
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

// Takes what follows the tokens, by the version that `map` names.
absl::StatusOr<LlamaStateMap> TakeCaches(Input input, LlamaStateMap map) {
  PREFIXD_RETURN_IF_ERROR(TakeNextCache(input, &map));
  while (input.left() != 0 && !input.Next(llama::kCheckpointsMagic)) {
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

}  // namespace

bool IsRotationUnknown(const LlamaContext& context, const LlamaTensor& tensor, uint32_t dim) {
  return context.version < llama::kVersionWithRotation &&
         tensor.format.codec != quant::Codec::kRaw && dim % llama::kRotatedDims == 0;
}

absl::StatusOr<LlamaStateMap> MapLlamaState(std::span<const std::byte> state) {
  Input input(state);
  LlamaStateMap map;
  PREFIXD_RETURN_IF_ERROR(TakeStart(input, &map));
  PREFIXD_RETURN_IF_ERROR(Unpack(&map));
  absl::StatusOr<LlamaStateMap> newest = TakeCaches(input, map);
  if (newest.ok() || !map.context.in_memory) return newest;
  map.context.version = llama::kVersionWithRotation - 1;
  absl::StatusOr<LlamaStateMap> older = TakeCaches(input, std::move(map));
  return older.ok() ? std::move(older) : std::move(newest);
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

}  // namespace prefixd::interop
