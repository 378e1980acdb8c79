#include <cstring>

#include "interop/llama_state.h"
#include "interop/llama_state_format.h"

namespace prefixd::interop {
namespace {

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
    output.Put(llama::kPackedMark);
    output.Put(llama::kPackedVersion);
    output.Put(count);
  }
  for (const uint32_t token : map.tokens) output.Put(token);
  if (packed) output.Put(uint32_t{0});
}

void PutTensors(const std::vector<LlamaTensor>& tensors, uint32_t cells, bool transposed,
                Output& output, std::vector<uint64_t>* rows) {
  for (const LlamaTensor& tensor : tensors) {
    output.Put(llama::NumberOf(tensor.format));
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
  if (version >= llama::kVersionWithRotation) {
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
  output.Put(context.in_memory ? llama::kMemoryMagic : llama::kFileMagic);
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

}  // namespace

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

}  // namespace prefixd::interop
