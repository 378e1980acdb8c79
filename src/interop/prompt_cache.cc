#include "interop/prompt_cache.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "interop/safetensors_writer.h"

namespace prefixd::interop {
namespace {

using Metadata = std::map<std::string, std::string>;

// A field of meta_state that a state with scalars has after its arrays, at `path`: "2" is state[2].
struct Scalar {
  size_t field = 0;
  const char* path = nullptr;
};
std::vector<Scalar> ScalarsOf(const std::string& class_name) {
  if (class_name == "KVCache") return {{0, "2"}};
  if (class_name == "QuantizedKVCache") return {{0, "2"}, {1, "3"}, {2, "4"}};
  // state: offset, keep, max_size, _idx; meta: keep, max_size, offset, _idx
  if (class_name == "RotatingKVCache") return {{2, "2"}, {0, "3"}, {1, "4"}, {3, "5"}};
  return {};
}

absl::Status BadPromptCache(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("prompt cache: ", path, ": ", what));
}

// --- reading

class Reader {
 public:
  Reader(const SafetensorsFile& file, PromptCacheStyle style) : file_(file), style_(style) {}

  // `state` and `meta` are the prefixes of the cache's names: "3" and "0.3".
  absl::StatusOr<MlxCache> Read(const std::string& class_name, const std::string& state,
                                const std::string& meta) const {
    MlxCache cache{.class_name = class_name};
    if (class_name == "CacheList") {
      PREFIXD_RETURN_IF_ERROR(ReadChildren(state, meta, &cache));
      return cache;
    }
    const std::string prefix = absl::StrCat(state, ".");
    for (const Tensor& tensor : file_.tensors()) {
      if (tensor.name.rfind(prefix, 0) != 0) continue;
      cache.state[tensor.name.substr(prefix.size())] = {
          .dtype = tensor.dtype, .shape = tensor.shape, .bytes = tensor.bytes};
    }
    if (style_ == PromptCacheStyle::kScalars) {
      PREFIXD_RETURN_IF_ERROR(TakeScalars(state, &cache));
      return cache;
    }
    for (size_t i = 0; const std::string* field = Find(absl::StrCat(meta, ".", i)); ++i) {
      cache.meta.push_back(*field);
    }
    return cache;
  }

  const std::string* Find(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }

 private:
  absl::Status ReadChildren(const std::string& state, const std::string& meta,
                            MlxCache* cache) const {
    const bool scalars = style_ == PromptCacheStyle::kScalars;
    for (size_t i = 0;; ++i) {
      std::string class_name;
      const std::string child = absl::StrCat(state, ".", i);
      if (scalars) {
        const Tensor* const text = file_.Find(absl::StrCat(child, ".1"));
        if (text == nullptr) break;
        PREFIXD_ASSIGN_OR_RETURN(class_name, TextOf(*text));
      } else {
        const std::string* const name = Find(absl::StrCat(meta, ".0.", i));
        if (name == nullptr) break;
        class_name = *name;
      }
      if (class_name == "CacheList") {
        return BadPromptCache(file_.path(), "a CacheList inside a CacheList");
      }
      PREFIXD_ASSIGN_OR_RETURN(MlxCache read,
                               Read(class_name, scalars ? absl::StrCat(child, ".0") : child,
                                    absl::StrCat(meta, ".1.", i)));
      cache->children.push_back(std::move(read));
    }
    return absl::OkStatus();
  }

  absl::Status TakeScalars(const std::string& state, MlxCache* cache) const {
    const std::vector<Scalar> scalars = ScalarsOf(cache->class_name);
    cache->meta.resize(scalars.size());
    for (const Scalar& scalar : scalars) {
      const auto found = cache->state.find(scalar.path);
      if (found == cache->state.end() || found->second.elements() != 1) {
        return BadPromptCache(file_.path(), absl::StrCat("no number ", state, ".", scalar.path,
                                                         " of a ", cache->class_name));
      }
      PREFIXD_ASSIGN_OR_RETURN(const int64_t number,
                               NumberOf(found->second.dtype, found->second.bytes));
      cache->meta[scalar.field] = absl::StrCat(number);
      cache->state.erase(found);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> NumberOf(TensorDtype dtype, std::span<const std::byte> bytes) const {
    int64_t wide = 0;
    int32_t narrow = 0;
    switch (dtype) {
      case TensorDtype::kI64:
        std::memcpy(&wide, bytes.data(), sizeof(wide));
        return wide;
      case TensorDtype::kI32:
        std::memcpy(&narrow, bytes.data(), sizeof(narrow));
        return narrow;
      default:
        return BadPromptCache(
            file_.path(), absl::StrCat("a number is ", ToString(dtype), ", must be I32 or I64"));
    }
  }

  // Decodes a text that is stored as numbers, one ASCII character each.
  absl::StatusOr<std::string> TextOf(const Tensor& tensor) const {
    std::string text;
    const size_t bytes = BytesOf(tensor.dtype);
    for (size_t at = 0; at + bytes <= tensor.bytes.size() && text.size() < 64; at += bytes) {
      PREFIXD_ASSIGN_OR_RETURN(const int64_t character,
                               NumberOf(tensor.dtype, tensor.bytes.subspan(at, bytes)));
      text.push_back(static_cast<char>(character));
    }
    return text;
  }

  const SafetensorsFile& file_;
  const PromptCacheStyle style_;
};

// --- writing

class Writer {
 public:
  explicit Writer(PromptCacheStyle style) : style_(style) {}

  absl::Status Add(const MlxCache& cache, const std::string& state, const std::string& meta) {
    if (cache.class_name == "CacheList") return AddChildren(cache, state, meta);
    for (const auto& [path, array] : cache.state) AddArray(absl::StrCat(state, ".", path), array);
    if (style_ == PromptCacheStyle::kScalars) return AddScalars(cache, state);
    if (cache.meta.empty()) metadata_[meta] = "";
    for (size_t i = 0; i < cache.meta.size(); ++i) {
      metadata_[absl::StrCat(meta, ".", i)] = cache.meta[i];
    }
    return absl::OkStatus();
  }

  // Adds the third part of the metadata in style kScalars: which arrays are numbers, texts or None.
  void AddMarks() {
    metadata_["2.0"] = "";
    for (size_t i = 0; i < marks_.size(); ++i) {
      metadata_[absl::StrCat("2.", i + 1, ".0")] = marks_[i].first;
      metadata_[absl::StrCat("2.", i + 1, ".1")] = marks_[i].second;
    }
  }

  Metadata& metadata() { return metadata_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void AddArray(const std::string& name, const Array& array) {
    tensors_.push_back(
        {.name = name, .dtype = array.dtype, .shape = array.shape, .bytes = array.bytes});
    if (array.elements() == 0) marks_.emplace_back(name, "none");
  }
  void AddNumbers(const std::string& name, std::vector<uint64_t> shape,
                  const std::vector<int32_t>& numbers, const char* mark) {
    std::vector<std::byte> bytes(numbers.size() * sizeof(int32_t));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    numbers_.push_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
    tensors_.push_back({.name = name,
                        .dtype = TensorDtype::kI32,
                        .shape = std::move(shape),
                        .bytes = *numbers_.back()});
    marks_.emplace_back(name, mark);
  }

  absl::Status AddScalars(const MlxCache& cache, const std::string& state) {
    std::vector<std::string> meta = cache.meta;
    if (cache.class_name == "KVCache" && meta.empty()) {
      const auto keys = cache.state.find("0");
      const bool known = keys != cache.state.end() && keys->second.shape.size() == 4;
      meta.push_back(absl::StrCat(known ? keys->second.shape[2] : 0));
    }
    const std::vector<Scalar> scalars = ScalarsOf(cache.class_name);
    if (meta.size() != scalars.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt cache: mlx-lm 0.32 has no ", cache.class_name, " of ", meta.size(),
                       " numbers: K and V must have the same bits and groups there"));
    }
    for (const Scalar& scalar : scalars) {
      int32_t number = 0;
      if (!absl::SimpleAtoi(meta[scalar.field], &number)) {
        return absl::InvalidArgumentError(absl::StrCat("prompt cache: \"", meta[scalar.field],
                                                       "\" of a ", cache.class_name,
                                                       " is not a number of 32 bits"));
      }
      AddNumbers(absl::StrCat(state, ".", scalar.path), {}, {number}, "scalar");
    }
    return absl::OkStatus();
  }

  absl::Status AddChildren(const MlxCache& cache, const std::string& state,
                           const std::string& meta) {
    const bool scalars = style_ == PromptCacheStyle::kScalars;
    for (size_t i = 0; i < cache.children.size(); ++i) {
      const MlxCache& child = cache.children[i];
      const std::string place = absl::StrCat(state, ".", i);
      PREFIXD_RETURN_IF_ERROR(
          Add(child, scalars ? absl::StrCat(place, ".0") : place, absl::StrCat(meta, ".1.", i)));
      if (scalars) {
        const std::vector<int32_t> text(child.class_name.begin(), child.class_name.end());
        AddNumbers(absl::StrCat(place, ".1"), {text.size()}, text, "string");
      } else {
        metadata_[absl::StrCat(meta, ".0.", i)] = child.class_name;
      }
    }
    return absl::OkStatus();
  }

  const PromptCacheStyle style_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> numbers_;  // tensors_ point into it
  std::vector<std::pair<std::string, std::string>> marks_;
  Metadata metadata_;
};

}  // namespace

absl::StatusOr<PromptCache> ReadPromptCache(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file,
                           SafetensorsFile::Open(path));
  PromptCache cache;
  // "2.0" tells the styles apart: a class name is never empty, the list of marks begins with "".
  const auto third = file->metadata().find("2.0");
  if (third == file->metadata().end()) {
    return BadPromptCache(path, "no metadata of a prompt cache: no class names at \"2.0\"");
  }
  const bool scalars = third->second.empty();
  cache.style = scalars ? PromptCacheStyle::kScalars : PromptCacheStyle::kMetaState;
  const std::string user = scalars ? "0." : "1.", classes = scalars ? "1." : "2.";
  for (const auto& [key, value] : file->metadata()) {
    if (key.rfind(user, 0) == 0) cache.metadata[key.substr(user.size())] = value;
  }
  const Reader reader(*file, cache.style);
  for (size_t i = 0; const std::string* name = reader.Find(absl::StrCat(classes, i)); ++i) {
    PREFIXD_ASSIGN_OR_RETURN(MlxCache layer,
                             reader.Read(*name, absl::StrCat(i), absl::StrCat("0.", i)));
    cache.layers.push_back(std::move(layer));
  }
  if (cache.layers.empty()) return BadPromptCache(path, "names no cache");
  cache.file = std::move(file);
  return cache;
}

absl::Status WritePromptCache(const std::string& path, const PromptCache& cache) {
  const bool scalars = cache.style == PromptCacheStyle::kScalars;
  const std::string user = scalars ? "0." : "1.", classes = scalars ? "1." : "2.";
  Writer writer(cache.style);
  for (size_t i = 0; i < cache.layers.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(writer.Add(cache.layers[i], absl::StrCat(i), absl::StrCat("0.", i)));
    writer.metadata()[absl::StrCat(classes, i)] = cache.layers[i].class_name;
  }
  if (scalars) writer.AddMarks();
  for (const auto& [key, value] : cache.metadata) {
    if (key.empty() || key.find('.') != std::string::npos) {
      return BadPromptCache(path,
                            absl::StrCat("metadata key \"", key, "\" is empty or holds a dot"));
    }
    writer.metadata()[user + key] = value;
  }
  return WriteSafetensors(path, writer.tensors(), writer.metadata());
}

}  // namespace prefixd::interop
