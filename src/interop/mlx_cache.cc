#include "interop/mlx_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status.h"

namespace prefixd::interop {
namespace {

constexpr uint32_t kDefaultGroup = 64, kDefaultBits = 8;  // of QuantizedRotatingKVCache

template <typename... Parts>
absl::Status BadCache(const MlxCache& cache, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("mlx cache: ", cache.class_name, ": ", parts...));
}

struct Quantization {
  uint32_t group = 0, bits = 0;
};

struct Meta {
  std::optional<uint32_t> offset;  // nullopt: the length of the arrays
  uint32_t keep = 0, max_size = 0, idx = 0;
  bool rotating = false, quantized = false;
  Quantization key{}, value{};
};

absl::StatusOr<std::vector<uint32_t>> ReadNumbers(const MlxCache& cache) {
  std::vector<uint32_t> numbers;
  for (const std::string& field : cache.meta) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(field, &number)) {
      return BadCache(cache, "field ", numbers.size(), " of its meta is \"", field,
                      "\", must be a number from 0 to 2^32 - 1");
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status WrongFields(const MlxCache& cache, const char* wanted) {
  return BadCache(cache, "its meta has ", cache.meta.size(), " fields, expected ", wanted);
}

// Reads (keep, max_size, offset, _idx) and, if `quantized`, possibly group and bits of K and V.
absl::StatusOr<Meta> ReadRotatingMeta(const MlxCache& cache, const std::vector<uint32_t>& n,
                                      bool quantized) {
  if (n.size() != 4 && !(quantized && n.size() == 8)) {
    return WrongFields(cache, quantized ? "4 or 8" : "4");
  }
  Meta meta{.offset = n[2], .keep = n[0], .max_size = n[1], .idx = n[3], .rotating = true};
  meta.quantized = quantized;
  meta.key = meta.value = {kDefaultGroup, kDefaultBits};
  if (n.size() == 8) {
    meta.key = {n[4], n[5]};
    meta.value = {n[6], n[7]};
  }
  if (meta.max_size == 0) return BadCache(cache, "max_size is 0, must be at least 1");
  return meta;
}

absl::StatusOr<Meta> ReadMeta(const MlxCache& cache) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> n, ReadNumbers(cache));
  Meta meta;
  if (cache.class_name == "KVCache") {
    if (n.size() > 1) return WrongFields(cache, "none or the offset");
    if (n.size() == 1) meta.offset = n[0];
    return meta;
  }
  if (cache.class_name == "QuantizedKVCache") {
    if (n.size() != 3 && n.size() != 5) return WrongFields(cache, "3 or 5");
    meta.offset = n[0];
    meta.quantized = true;
    meta.key = {n[1], n[2]};
    meta.value = n.size() == 5 ? Quantization{n[3], n[4]} : meta.key;
    return meta;
  }
  if (cache.class_name == "RotatingKVCache") return ReadRotatingMeta(cache, n, false);
  if (cache.class_name == "QuantizedRotatingKVCache") return ReadRotatingMeta(cache, n, true);
  return BadCache(cache,
                  "a class whose tokens are not known here, accepted: KVCache, QuantizedKVCache, "
                  "RotatingKVCache, QuantizedRotatingKVCache");
}

// Rows [begin, end) of the arrays' token axis.
struct RowRun {
  uint64_t begin = 0, end = 0;
};

// Returns the stored tokens' rows in the order of positions, as mlx-lm's _temporal_order does.
absl::StatusOr<std::vector<RowRun>> OrderOf(const MlxCache& cache, const Meta& meta,
                                            uint64_t allocated) {
  const uint64_t offset = meta.offset.value_or(allocated);
  if (offset == 0 || allocated == 0) {
    return BadCache(cache, "has no tokens: there is nothing to store");
  }
  if (!meta.rotating) {
    if (offset <= allocated) return std::vector<RowRun>{{0, offset}};
    return BadCache(cache, "offset is ", offset, ", its arrays have ", allocated, " tokens");
  }
  if (meta.keep > meta.idx || meta.idx > allocated || meta.idx == 0) {
    return BadCache(cache, "_idx is ", meta.idx, ", must be from keep (", meta.keep,
                    ") to its arrays' length (", allocated, ")");
  }
  if (meta.idx == allocated || meta.idx >= offset) {
    if (meta.idx <= offset) return std::vector<RowRun>{{0, meta.idx}};
    return BadCache(cache, "_idx is ", meta.idx, " at offset ", offset);
  }
  if (allocated > offset) {
    return BadCache(cache, "has wrapped at offset ", offset, " in arrays of ", allocated,
                    " tokens");
  }
  return std::vector<RowRun>{{0, meta.keep}, {meta.idx, allocated}, {meta.keep, meta.idx}};
}

absl::StatusOr<const Array*> FindArray(const MlxCache& cache, const std::string& path) {
  const auto found = cache.state.find(path);
  if (found == cache.state.end()) return BadCache(cache, "its state has no array ", path);
  const Array& array = found->second;
  if (array.elements() == 0) {
    return BadCache(cache, "has no tokens: there is nothing to store");
  }
  if (array.shape.size() != 4) {
    return BadCache(cache, "array ", path, " has ", array.shape.size(),
                    " dimensions, must be [1, heads, tokens, dim]");
  }
  if (array.shape[0] != 1) {
    return BadCache(cache, "array ", path, " is a batch of ", array.shape[0],
                    ": take its sequences apart first");
  }
  return &array;
}

absl::StatusOr<quant::Dtype> FloatDtype(const MlxCache& cache, const std::string& path,
                                        TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::kF32:
      return quant::Dtype::kF32;
    case TensorDtype::kF16:
      return quant::Dtype::kF16;
    case TensorDtype::kBf16:
      return quant::Dtype::kBf16;
    default:
      return BadCache(cache, "array ", path, " is ", ToString(dtype), ", must be F32, F16 or BF16");
  }
}

// Returns the runs' rows as dense [heads][rows].
std::vector<std::byte> Gather(const Array& array, const std::vector<RowRun>& order) {
  const uint64_t heads = array.shape[1], tokens = array.shape[2];
  const size_t row = array.shape[3] * BytesOf(array.dtype);
  std::vector<std::byte> rows;
  for (uint64_t head = 0; head < heads; ++head) {
    for (const RowRun& run : order) {
      const auto from = array.bytes.subspan((head * tokens + run.begin) * row);
      rows.insert(rows.end(), from.begin(),
                  from.begin() + static_cast<ptrdiff_t>((run.end - run.begin) * row));
    }
  }
  return rows;
}

// Reads K or V, whose arrays are at `path`.
class TensorReader {
 public:
  TensorReader(const MlxCache& cache, const Meta& meta, std::string path)
      : cache_(cache), meta_(meta), path_(std::move(path)) {}

  // Reads the tensor. Sets the heads and row count of `rows`, or compares them if they are set.
  absl::Status Read(const Quantization& quantization, RowsOfTensor* tensor, KvRows* rows) {
    if (!meta_.quantized) return ReadRaw(tensor, rows);
    PREFIXD_ASSIGN_OR_RETURN(const Array* codes, FindArray(cache_, path_ + ".0"));
    PREFIXD_ASSIGN_OR_RETURN(const Array* scales, FindArray(cache_, path_ + ".1"));
    PREFIXD_ASSIGN_OR_RETURN(const Array* biases, FindArray(cache_, path_ + ".2"));
    if (codes->dtype != TensorDtype::kU32) {
      return BadCache(cache_, "array ", path_, ".0 is ", ToString(codes->dtype), ", must be U32");
    }
    PREFIXD_ASSIGN_OR_RETURN(const quant::Dtype dtype,
                             FloatDtype(cache_, path_ + ".1", scales->dtype));
    if (quantization.bits == 0 || quantization.bits > 8 || quantization.group > 0xffff) {
      return BadCache(cache_, quantization.bits, " bits in groups of ", quantization.group);
    }
    tensor->format = quant::MlxAffineFormat(static_cast<uint8_t>(quantization.bits),
                                            static_cast<uint16_t>(quantization.group), dtype);
    tensor->dim = static_cast<uint32_t>(
        std::min<uint64_t>(codes->shape[3] * 32 / quantization.bits, quant::kMaxDim + 1));
    PREFIXD_RETURN_IF_ERROR(CheckFormat(*tensor));
    PREFIXD_RETURN_IF_ERROR(CheckLastDim(*codes, ".0", tensor->dim * quantization.bits / 32));
    const uint32_t groups = tensor->dim / quantization.group;
    PREFIXD_RETURN_IF_ERROR(CheckLastDim(*scales, ".1", groups));
    PREFIXD_RETURN_IF_ERROR(CheckLastDim(*biases, ".2", groups));
    if (biases->dtype != scales->dtype) {
      return BadCache(cache_, "array ", path_, ".2 is ", ToString(biases->dtype),
                      ", the scales are ", ToString(scales->dtype));
    }
    for (const Array* part : {codes, scales, biases}) {
      PREFIXD_RETURN_IF_ERROR(CheckRows(*part, *codes, rows));
    }
    tensor->codes = Gather(*codes, order_);
    tensor->scales = Gather(*scales, order_);
    tensor->biases = Gather(*biases, order_);
    return absl::OkStatus();
  }

 private:
  absl::Status ReadRaw(RowsOfTensor* tensor, KvRows* rows) {
    PREFIXD_ASSIGN_OR_RETURN(const Array* array, FindArray(cache_, path_));
    PREFIXD_ASSIGN_OR_RETURN(const quant::Dtype dtype, FloatDtype(cache_, path_, array->dtype));
    tensor->format = quant::RawFormat(dtype);
    tensor->dim = static_cast<uint32_t>(std::min<uint64_t>(array->shape[3], quant::kMaxDim + 1));
    PREFIXD_RETURN_IF_ERROR(CheckFormat(*tensor));
    PREFIXD_RETURN_IF_ERROR(CheckRows(*array, *array, rows));
    tensor->codes = Gather(*array, order_);
    return absl::OkStatus();
  }

  absl::Status CheckFormat(const RowsOfTensor& tensor) const {
    const absl::Status status = quant::Validate(tensor.format, tensor.dim);
    return status.ok() ? status : BadCache(cache_, std::string(status.message()));
  }
  absl::Status CheckLastDim(const Array& array, const char* part, uint64_t wanted) const {
    if (array.shape[3] == wanted) return absl::OkStatus();
    return BadCache(cache_, "array ", path_, part, " has ", array.shape[3],
                    " columns, its bits and groups need ", wanted);
  }
  // Checks that `array` has the heads and tokens of `like` and of `rows`, if that has them already.
  absl::Status CheckRows(const Array& array, const Array& like, KvRows* rows) {
    if (array.shape[1] != like.shape[1] || array.shape[2] != like.shape[2]) {
      return BadCache(cache_, "arrays of ", path_, " have [", absl::StrJoin(array.shape, ", "),
                      "] and [", absl::StrJoin(like.shape, ", "), "]: heads or tokens differ");
    }
    PREFIXD_ASSIGN_OR_RETURN(order_, OrderOf(cache_, meta_, array.shape[2]));
    uint64_t count = 0;
    for (const RowRun& run : order_) count += run.end - run.begin;
    if (rows->kv_heads == 0) {
      rows->kv_heads = static_cast<uint32_t>(array.shape[1]);
      rows->rows = static_cast<uint32_t>(count);
      rows->offset = meta_.offset.value_or(rows->rows);
    }
    if (rows->kv_heads == array.shape[1] && rows->rows == count) return absl::OkStatus();
    return BadCache(cache_, "K has ", rows->kv_heads, " heads and ", rows->rows, " tokens, V has ",
                    array.shape[1], " and ", count);
  }

  const MlxCache& cache_;
  const Meta& meta_;
  const std::string path_;
  std::vector<RowRun> order_;
};

// --- rows to cache objects

TensorDtype DtypeOf(quant::Dtype dtype) {
  return dtype == quant::Dtype::kF32   ? TensorDtype::kF32
         : dtype == quant::Dtype::kF16 ? TensorDtype::kF16
                                       : TensorDtype::kBf16;
}

Array OwnArray(TensorDtype dtype, std::vector<uint64_t> shape, std::vector<std::byte> bytes) {
  Array array{.dtype = dtype, .shape = std::move(shape)};
  array.memory = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  array.bytes = *array.memory;
  return array;
}

void AddTensor(const KvRows& rows, const RowsOfTensor& tensor, const std::string& path,
               MlxCache* cache) {
  const auto add = [&](const std::string& name, TensorDtype dtype,
                       const std::vector<std::byte>& bytes) {
    const uint64_t columns = bytes.size() / BytesOf(dtype) / rows.kv_heads / rows.rows;
    cache->state[name] = OwnArray(dtype, {1, rows.kv_heads, rows.rows, columns}, bytes);
  };
  const TensorDtype dtype = DtypeOf(tensor.format.dtype);
  if (tensor.format.codec == quant::Codec::kRaw) return add(path, dtype, tensor.codes);
  add(path + ".0", TensorDtype::kU32, tensor.codes);
  add(path + ".1", dtype, tensor.scales);
  add(path + ".2", dtype, tensor.biases);
}

}  // namespace

uint64_t Array::elements() const {
  uint64_t count = 1;
  for (uint64_t size : shape) count *= size;
  return count;
}

absl::StatusOr<KvRows> ReadKvRows(const MlxCache& cache) {
  PREFIXD_ASSIGN_OR_RETURN(const Meta meta, ReadMeta(cache));
  if (meta.offset == 0u) return BadCache(cache, "has no tokens: there is nothing to store");
  KvRows rows;
  PREFIXD_RETURN_IF_ERROR(TensorReader(cache, meta, "0").Read(meta.key, &rows.key, &rows));
  PREFIXD_RETURN_IF_ERROR(TensorReader(cache, meta, "1").Read(meta.value, &rows.value, &rows));
  rows.keep = meta.keep;
  rows.max_size = meta.max_size;
  return rows;
}

absl::StatusOr<MlxCache> MlxCacheOf(const KvRows& rows) {
  const bool quantized = rows.key.format.codec == quant::Codec::kMlxAffine;
  const auto fits = [&](const quant::TensorFormat& format) {
    return format.codec == (quantized ? quant::Codec::kMlxAffine : quant::Codec::kRaw) &&
           format.rotation == quant::Rotation::kNone;
  };
  if (!fits(rows.key.format) || !fits(rows.value.format)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mlx cache: mlx-lm has no cache of ",
                     quant::ToString(quant::KvFormat{rows.key.format, rows.value.format}),
                     ", only of raw elements and of mlx_affine, K and V alike and not rotated"));
  }
  if (rows.rows == 0) {
    return absl::InvalidArgumentError("mlx cache: a cache of no tokens is not written");
  }
  MlxCache cache;
  const bool rotating = rows.max_size != 0;
  if (rotating) {
    cache.class_name = quantized ? "QuantizedRotatingKVCache" : "RotatingKVCache";
    for (uint32_t field : {rows.keep, rows.max_size, rows.offset, rows.rows}) {
      cache.meta.push_back(absl::StrCat(field));
    }
  } else {
    cache.class_name = quantized ? "QuantizedKVCache" : "KVCache";
    if (quantized) cache.meta.push_back(absl::StrCat(rows.offset));
  }
  const auto add_bits = [&](const quant::TensorFormat& format) {
    cache.meta.push_back(absl::StrCat(format.group_size));
    cache.meta.push_back(absl::StrCat(uint32_t{format.bits}));
  };
  if (quantized) {
    add_bits(rows.key.format);
    if (rotating || rows.key.format != rows.value.format) add_bits(rows.value.format);
  }
  AddTensor(rows, rows.key, "0", &cache);
  AddTensor(rows, rows.value, "1", &cache);
  return cache;
}

absl::StatusOr<std::optional<uint32_t>> TokensOf(const MlxCache& cache) {
  std::optional<uint32_t> tokens;
  if (cache.class_name == "ArraysCache" || cache.class_name == "MambaCache") return tokens;
  if (cache.class_name == "CacheList") {
    for (const MlxCache& child : cache.children) {
      PREFIXD_ASSIGN_OR_RETURN(const std::optional<uint32_t> of_child, TokensOf(child));
      if (of_child.has_value()) tokens = std::max(tokens.value_or(0), *of_child);
    }
    return tokens;
  }
  PREFIXD_ASSIGN_OR_RETURN(const Meta meta, ReadMeta(cache));
  if (meta.offset.has_value()) return meta.offset;
  const auto keys = cache.state.find("0");
  if (keys == cache.state.end() || keys->second.shape.size() != 4)
    return std::optional<uint32_t>(0);
  return std::optional<uint32_t>(static_cast<uint32_t>(keys->second.shape[2]));
}

}  // namespace prefixd::interop
