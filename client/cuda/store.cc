#include "store.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"
#include "formats.h"

namespace prefixd::cuda {
namespace {

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("quantize: ", parts...));
}

bool Writes(const TensorGeometry& tensor) {
  return tensor.codec == kRaw || tensor.codec == kMlxAffine || tensor.codec == kQ8_0 ||
         tensor.codec == kQ4_0;
}

}  // namespace

absl::StatusOr<QuantizeArguments> CheckQuantize(const prefixd_cuda_quantize_options& options) {
  QuantizeArguments arguments;
  PREFIXD_ASSIGN_OR_RETURN(
      arguments.tensor,
      GeometryOf(options.format, options.dim, options.value != 0 ? Side::kValue : Side::kLatent));
  if (!Writes(arguments.tensor)) {
    return Refuse("the GPU writes raw, mlx_affine, q8_0 and q4_0, not codec ",
                  options.format.codec);
  }
  if (options.kv_heads == 0 || options.kv_heads > 1024) {
    return Refuse("kv_heads is ", options.kv_heads, ", must be 1 to 1024");
  }
  PREFIXD_ASSIGN_OR_RETURN(arguments.rows,
                           PlaceOf(options.rows, options.kv_heads, options.dim, "rows"));
  PREFIXD_RETURN_IF_ERROR(CheckTable(arguments.rows, options.table, options.table_count,
                                     uint64_t{options.begin} + options.count));
  if (options.page_tokens == 0 || options.first_slot >= options.page_tokens) {
    return Refuse("first_slot ", options.first_slot, " is not in a page of ", options.page_tokens,
                  " tokens");
  }
  const uint64_t slots = uint64_t{options.first_slot} + options.count;
  const uint64_t pages = (slots + options.page_tokens - 1) / options.page_tokens;
  if (options.pages == nullptr || options.page_count < pages) {
    return Refuse(options.pages == nullptr ? 0 : options.page_count, " pages are given, ", pages,
                  " are needed for ", slots, " slots");
  }
  for (uint64_t i = 0; i < pages; ++i) {
    if (options.pages[i] == nullptr ||
        reinterpret_cast<uintptr_t>(options.pages[i]) % kUnitAlignment != 0) {
      return Refuse("page ", i, " is NULL or not 128-byte aligned");
    }
  }
  arguments.places = PlacesOf(arguments.tensor, options.page_tokens);
  arguments.unit_stride = options.unit_stride == 0 ? arguments.places.bytes : options.unit_stride;
  if (arguments.unit_stride % kUnitAlignment != 0 ||
      (options.kv_heads > 1 && arguments.unit_stride < arguments.places.bytes)) {
    return Refuse("unit_stride ", options.unit_stride, " is no multiple of 128 of at least ",
                  arguments.places.bytes);
  }
  arguments.page_tokens = options.page_tokens;
  arguments.first_slot = options.first_slot;
  arguments.kv_heads = options.kv_heads;
  arguments.begin = options.begin;
  arguments.count = options.count;
  return arguments;
}

absl::Status Quantize(Context* context, const prefixd_cuda_quantize_options& options,
                      cudaStream_t stream) {
  PREFIXD_ASSIGN_OR_RETURN(QuantizeArguments arguments, CheckQuantize(options));
  if (options.count == 0) return absl::OkStatus();
  PREFIXD_RETURN_IF_ERROR(context->Enter());
  // Both tables travel in one copy: addresses of pages, then the engine's blocks.
  const size_t page_bytes = options.page_count * sizeof(void*);
  const size_t table_bytes =
      arguments.rows.block_tokens == 0 ? 0 : options.table_count * sizeof(int32_t);
  std::vector<std::byte> tables(page_bytes + table_bytes);
  std::memcpy(tables.data(), options.pages, page_bytes);
  if (table_bytes > 0) std::memcpy(tables.data() + page_bytes, options.table, table_bytes);
  PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk,
                           context->tables().Upload(tables.data(), tables.size(), stream));
  arguments.pages = reinterpret_cast<uint8_t* const*>(chunk->device);
  arguments.table = reinterpret_cast<const int32_t*>(chunk->device + page_bytes);
  const cudaError_t error = QueueQuantize(arguments, stream);
  PREFIXD_RETURN_IF_ERROR(context->tables().Give(chunk, stream));
  return FromCuda(error, "quantize");
}

absl::Status CopyFromArena(Context* context, void* to, const void* from, uint64_t bytes,
                           cudaStream_t stream) {
  PREFIXD_RETURN_IF_ERROR(context->Enter());
  auto* target = static_cast<std::byte*>(to);
  for (const Context::Span& span : context->SpansOf(from, bytes)) {
    if (span.pinned) {
      PREFIXD_RETURN_IF_ERROR(FromCuda(
          cudaMemcpyAsync(target, span.from, span.bytes, cudaMemcpyHostToDevice, stream), "copy"));
      target += span.bytes;
      continue;
    }
    for (uint64_t done = 0; done < span.bytes;) {
      const uint64_t part = std::min<uint64_t>(span.bytes - done, context->bounce_chunk_bytes());
      PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk, context->bounce().Take(part));
      std::memcpy(chunk->host, static_cast<const std::byte*>(span.from) + done, part);
      const absl::Status queued = FromCuda(
          cudaMemcpyAsync(target, chunk->host, part, cudaMemcpyHostToDevice, stream), "copy");
      PREFIXD_RETURN_IF_ERROR(context->bounce().Give(chunk, stream));
      PREFIXD_RETURN_IF_ERROR(queued);
      target += part;
      done += part;
    }
  }
  return absl::OkStatus();
}

}  // namespace prefixd::cuda
