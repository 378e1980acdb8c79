// A rotating cache that has wrapped, as one run of bytes. Its contents are correct after exactly
// `offset` tokens and are no prefix of anything, so a layer of kind kState keeps them.
//
// A record holds K's codes, scales and biases, then V's, each dense [kv_heads][max_size][row], rows
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

// Leaves out rows beyond max_size, which mlx-lm has for a while after several tokens at once: no
// later token attends on them. InvalidArgument if the rows have not wrapped, or are too few.
absl::StatusOr<std::vector<std::byte>> RecordOf(const KvRows& rows);
// Returns the rows at `offset`, with the heads, formats, dims, keep and max_size of `like`.
// InvalidArgument if the record's size differs, or if nothing has wrapped at `offset`.
absl::StatusOr<KvRows> RowsOfRecord(const KvRows& like, uint32_t offset,
                                    std::span<const std::byte> record);

}  // namespace prefixd::interop
