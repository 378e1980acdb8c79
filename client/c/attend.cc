// Attention of prefixd.h.
#include <array>
#include <vector>

#include "handles.h"
#include "prefixd/attention.h"

namespace {

using namespace prefixd::c;  // NOLINT: this file is that namespace's C face

constexpr size_t kMostFormats = 8;  // up to here Attend() itself says how many it accepts

}  // namespace

extern "C" prefixd_status prefixd_attend(const prefixd_block* blocks, size_t block_count,
                                         const prefixd_format* formats, size_t format_count,
                                         const float* q, float* out,
                                         const prefixd_attend_options* options) {
  return Guarded<prefixd_status>(PREFIXD_EXHAUSTED, [&]() -> prefixd_status {
    prefixd_attend_options with;
    if (!Take(options, &with)) return PREFIXD_INVALID_ARGUMENT;
    if (format_count > kMostFormats || (formats == nullptr && format_count > 0) ||
        (blocks == nullptr && block_count > 0)) {
      return Refuse("attend: no blocks or formats given, or too many formats");
    }
    std::array<prefixd::KvFormat, kMostFormats> inner;
    for (size_t i = 0; i < format_count; ++i) inner[i] = FormatOf(formats[i]);
    std::vector<prefixd::BlockTableEntry> table;
    table.reserve(block_count);
    for (size_t i = 0; i < block_count; ++i) {
      table.push_back({.units = static_cast<const std::byte*>(blocks[i].units),
                       .arena_offset = blocks[i].arena_offset,
                       .page_tokens = blocks[i].page_tokens,
                       .tokens = blocks[i].tokens,
                       .format = blocks[i].format});
    }
    return Tell(prefixd::Attend(table, std::span(inner).first(format_count), q, out,
                                {.query_rows = std::max(1u, with.query_rows),
                                 .query_heads = with.query_heads,
                                 .kv_heads = with.kv_heads,
                                 .key_dim = with.key_dim,
                                 .value_dim = with.value_dim,
                                 .first_position = with.first_position,
                                 .scale = with.scale,
                                 .threads = std::max(1u, with.threads),
                                 .window = with.window,
                                 .sink_tokens = with.sink_tokens,
                                 .query_row_stride = with.query_row_stride,
                                 .query_head_stride = with.query_head_stride,
                                 .out_row_stride = with.out_row_stride,
                                 .out_head_stride = with.out_head_stride}));
  });
}
