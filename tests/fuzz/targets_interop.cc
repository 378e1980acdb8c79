// Files that other engines wrote.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"

#include "interop/gguf.h"
#include "interop/llama_state.h"
#include "interop/prompt_cache.h"
#include "interop/safetensors.h"
#include "interop/window_record.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {
namespace {

using interop::KvRows;

bool Same(const KvRows& a, const KvRows& b) {
  const auto same = [](const interop::RowsOfTensor& x, const interop::RowsOfTensor& y) {
    return x.format == y.format && x.dim == y.dim && x.codes == y.codes && x.scales == y.scales &&
           x.biases == y.biases;
  };
  return a.kv_heads == b.kv_heads && a.rows == b.rows && a.offset == b.offset && a.keep == b.keep &&
         a.max_size == b.max_size && same(a.key, b.key) && same(a.value, b.value);
}

std::string TextOf(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string TemporaryPath() {
  return std::filesystem::temp_directory_path() / absl::StrCat("prefixd-fuzz-cache-", ::getpid());
}

// --- checkpoints

void Safetensors(Bytes input) {
  const std::string path = TemporaryPath();
  std::ofstream(path, std::ios::binary) << TextOf(input);
  const auto file = interop::SafetensorsFile::Open(path);
  if (file.ok()) {
    uint64_t sum = 0;
    for (const interop::Tensor& tensor : (*file)->tensors()) {
      for (const std::byte byte : tensor.bytes) sum += static_cast<uint64_t>(byte);
    }
    Expect(sum <= 255 * input.size(), "tensors lie inside the file, none twice");
  }
  std::filesystem::remove(path);
}

std::string Framed(const std::string& header, size_t data) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + std::string(data, 'x');
}

std::vector<std::string> SafetensorsSeeds() {
  return {Framed("{}", 0), Framed(R"({"a":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},)"
                                  R"("b":{"dtype":"U32","shape":[1],"data_offsets":[12,16]},)"
                                  R"("__metadata__":{"k":"v"}})",
                                  16)};
}

// --- llama.cpp

const std::vector<interop::LlamaLayerShape> kShapes(2,
                                                    {.kv_heads = 2, .key_dim = 32, .value_dim = 4});

KvRows RowsOf(const quant::TensorFormat& key) {
  KvRows rows;
  rows.kv_heads = 2;
  rows.rows = rows.offset = 3;
  rows.key = {key, 32, std::vector<std::byte>(6 * quant::BytesOfStoredRow(key, 32).codes), {}, {}};
  rows.value = {quant::RawFormat(quant::Dtype::kF16), 4, std::vector<std::byte>(48), {}, {}};
  return rows;
}

// --- mlx-lm

interop::Array ArrayOf(interop::TensorDtype dtype, std::vector<uint64_t> shape) {
  interop::Array array{.dtype = dtype, .shape = std::move(shape)};
  array.memory =
      std::make_shared<const std::vector<std::byte>>(array.elements() * interop::BytesOf(dtype));
  array.bytes = *array.memory;
  return array;
}

// What a cache is read as is what the cache made of it is read as.
void ReadCache(const interop::MlxCache& cache) {
  for (const interop::MlxCache& child : cache.children) ReadCache(child);
  if (const auto state = interop::ReadStateArrays(cache); state.ok()) {
    const std::vector<std::byte> snapshot = interop::SnapshotOf(*state);
    const auto back = interop::StateOfSnapshot(*state, snapshot);
    Expect(back.ok() && interop::SnapshotOf(*back) == snapshot, "a state comes back");
  }
  const auto rows = interop::ReadKvRows(cache);
  if (!rows.ok()) return;
  const auto made = interop::MlxCacheOf(*rows);
  Expect(made.ok(), "rows of a cache make one");
  const auto back = interop::ReadKvRows(*made);
  Expect(back.ok() && Same(*back, *rows), "rows come back");
  const auto record = interop::RecordOf(*rows);
  if (!record.ok()) return;
  const auto window = interop::RowsOfRecord(*rows, rows->offset, *record);
  Expect(window.ok() && window->rows == rows->max_size, "a record holds a window");
}

// Rows lie inside the state.
void CheckRows(const interop::LlamaCache& cache, const interop::LlamaCacheMap& at, Bytes input) {
  for (size_t layer = 0; layer < at.keys.size(); ++layer) {
    Expect(at.keys[layer] + cache.keys[layer].token_bytes * at.cells <= input.size() &&
               at.values[layer] + cache.values[layer].token_bytes * at.cells <= input.size(),
           "rows lie inside");
  }
}

// Whatever can be mapped lies inside the state, and its heads can be written again.
void MapLlama(Bytes input) {
  const auto map = interop::MapLlamaState(input);
  if (!map.ok()) return;
  std::vector<uint32_t> first;
  for (size_t i = 0; i < map->caches.size(); ++i) {
    first.push_back(map->caches[i].first);
    CheckRows(map->context.caches[i], map->caches[i], input);
  }
  const uint64_t states = map->context.recurrent_bytes;
  Expect(map->recurrent + states <= input.size(), "states lie inside");
  for (const interop::LlamaCheckpoint& checkpoint : map->checkpoints) {
    Expect(checkpoint.length < map->length, "a checkpoint is of fewer tokens");
    Expect(checkpoint.recurrent + states <= input.size(), "states of checkpoints lie inside");
    if (first.size() > 1) CheckRows(map->context.caches[1], checkpoint.sliding, input);
  }
  const auto again = interop::LayOutLlamaState(map->context, map->tokens, map->length, first);
  std::vector<std::byte> state(again.bytes);
  interop::WriteLlamaHeads(again, state);
  if (states != 0) std::memcpy(&state[again.recurrent], &input[map->recurrent], states);
  const auto back = interop::MapLlamaState(state);
  Expect(back.ok() && back->context == map->context && back->tokens == map->tokens &&
             back->length == map->length && back->bytes == again.bytes,
         "what was laid out is mapped");
}

void LlamaState(Bytes input) {
  MapLlama(input);
  const auto state = interop::ReadLlamaState(input, kShapes);
  if (!state.ok()) return;
  const auto blob = interop::WriteLlamaState(*state);
  Expect(blob.ok(), "what was read can be written");
  const auto back = interop::ReadLlamaState(*blob, kShapes);
  Expect(back.ok() && back->tokens == state->tokens, "what was written is read");
  for (size_t i = 0; i < kShapes.size(); ++i) {
    Expect(Same(back->layers[i], state->layers[i]), "rows come back");
  }
}

std::vector<std::string> LlamaStateSeeds() {
  std::vector<std::string> seeds;
  for (const auto& key :
       {quant::RawFormat(quant::Dtype::kF16), quant::GgmlFormat(quant::Codec::kQ8_0)}) {
    for (const bool transposed : {false, true}) {
      const auto blob = interop::WriteLlamaState({.tokens = {1, 2, 3},
                                                  .layers = {RowsOf(key), RowsOf(key)},
                                                  .values_transposed = transposed});
      Expect(blob.ok(), "a seed can be written");
      seeds.push_back(TextOf(*blob));
    }
  }
  for (const uint32_t version : {2U, 3U, 4U}) {
    for (const bool in_memory : {false, true}) {
      if (in_memory && version < 3) continue;
      interop::LlamaContext context;
      context.version = version;
      context.in_memory = in_memory;
      context.packed_tokens = !in_memory;
      interop::LlamaCache cache;
      cache.streams = version;
      cache.keys.assign(2, {.format = quant::RawFormat(quant::Dtype::kF16), .token_bytes = 8});
      cache.values = cache.keys;
      context.caches.assign(version == 4 ? 2 : 1, cache);
      context.recurrent_bytes = version == 3 ? 32 : 0;
      const std::vector<uint32_t> tokens = {4, 5, 6}, first = {0, 1};
      const auto map = interop::LayOutLlamaState(
          context, in_memory ? std::span<const uint32_t>() : tokens, 3, first);
      std::vector<std::byte> state(map.bytes);
      interop::WriteLlamaHeads(map, state);
      seeds.push_back(TextOf(state));
    }
  }
  return seeds;
}

// --- GGUF

void GgufFile(Bytes input) {
  const std::string text = TextOf(input);
  const auto gguf = interop::Gguf::Parse(text);
  if (!gguf.ok()) return;
  Expect(gguf->Numbers("a", 3).size() % 3 == 0, "so many numbers as asked for, or none");
  gguf->Text("t");
}

std::vector<std::string> GgufSeeds() {
  std::string file = "GGUF";
  const auto put = [&](auto value) {
    file.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto key = [&](const char* name, uint32_t type) {
    put(uint64_t{1});
    file += name;
    put(type);
  };
  put(uint32_t{3});
  put(uint64_t{0});
  put(uint64_t{4});
  key("a", 9);  // an array of three i32
  put(uint32_t{5});
  put(uint64_t{3});
  for (const int32_t number : {-1, 0, 7}) put(number);
  key("t", 8);  // a text
  put(uint64_t{2});
  file += "xy";
  key("s", 9);  // an array of one text
  put(uint32_t{8});
  put(uint64_t{1});
  put(uint64_t{1});
  file += "z";
  key("f", 6);
  put(1.5F);
  return {file};
}

void PromptCache(Bytes input) {
  const std::string path = TemporaryPath();
  std::ofstream(path, std::ios::binary) << TextOf(input);
  if (const auto cache = interop::ReadPromptCache(path); cache.ok()) {
    for (const interop::MlxCache& layer : cache->layers) ReadCache(layer);
  }
  std::filesystem::remove(path);
}

std::vector<std::string> PromptCacheSeeds() {
  using interop::TensorDtype;
  const std::map<std::string, interop::Array> raw = {
      {"0", ArrayOf(TensorDtype::kF16, {1, 2, 9, 4})},
      {"1", ArrayOf(TensorDtype::kF16, {1, 2, 9, 8})}};
  interop::PromptCache cache;
  cache.layers.push_back({.class_name = "KVCache", .state = raw});
  cache.layers.push_back(
      {.class_name = "RotatingKVCache", .state = raw, .meta = {"2", "9", "30", "5"}});
  cache.layers.push_back({.class_name = "ArraysCache",
                          .state = {{"0.0", ArrayOf(TensorDtype::kF32, {1, 3})},
                                    {"1", ArrayOf(TensorDtype::kF32, {0})},
                                    {"2", ArrayOf(TensorDtype::kF32, {0})}}});
  interop::MlxCache list{.class_name = "CacheList"};
  list.children = {cache.layers[0], cache.layers[1]};
  cache.layers.push_back(list);
  std::vector<std::string> seeds;
  for (const auto style :
       {interop::PromptCacheStyle::kMetaState, interop::PromptCacheStyle::kScalars}) {
    cache.style = style;
    Expect(interop::WritePromptCache(TemporaryPath(), cache).ok(), "a seed can be written");
    std::ifstream file(TemporaryPath(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::filesystem::remove(TemporaryPath());
  return seeds;
}

}  // namespace

std::vector<Target> InteropTargets() {
  return {{"safetensors", Safetensors, SafetensorsSeeds},
          {"llama_states", LlamaState, LlamaStateSeeds},
          {"gguf", GgufFile, GgufSeeds},
          {"prompt_caches", PromptCache, PromptCacheSeeds}};
}

}  // namespace prefixd::fuzz
