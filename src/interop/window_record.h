// A rotating cache that has wrapped, as one run of bytes: what it holds is right after exactly
// `offset` tokens and no prefix of anything, which is what a layer of kind kState keeps.
//
// A record has K's codes, scales and biases, then V's, each dense [kv_heads][max_size][row], rows
// in the order of their positions: the first `keep`, then the last max_size - keep. Its size
// depends on the cache's shape and format alone. Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "interop/kv_rows.h"

namespace prefixd::interop {

// Rows beyond max_size, which mlx-lm has for a while after several tokens at once, are left out: no
// later token attends on them. InvalidArgument for rows that have not wrapped, or are too few.
absl::StatusOr<std::vector<std::byte>> RecordOf(const KvRows& rows);
// The rows at `offset`, in heads, formats, dims, keep and max_size as `like` has them.
// InvalidArgument when the record's size is another, or nothing has wrapped at `offset`.
absl::StatusOr<KvRows> RowsOfRecord(const KvRows& like, uint32_t offset,
                                    std::span<const std::byte> record);

}  // namespace prefixd::interop
