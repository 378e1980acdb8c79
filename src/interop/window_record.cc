#include "interop/window_record.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::interop {
namespace {

absl::Status BadRecord(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("window record: ", what));
}

absl::Status CheckWrapped(uint32_t keep, uint32_t max_size, uint32_t offset) {
  if (max_size > keep && offset > max_size) return absl::OkStatus();
  return BadRecord(absl::StrCat("a cache of at most ", max_size, " tokens, ", keep,
                                " of them kept, has not wrapped at offset ", offset));
}

// Visits the parts of both tensors in the record's order, each with the bytes of one row.
template <typename Rows, typename Visit>
void ForEachPart(Rows& rows, const Visit& visit) {
  for (auto* tensor : {&rows.key, &rows.value}) {
    const quant::RowBytes row = quant::BytesOfStoredRow(tensor->format, tensor->dim);
    visit(tensor->codes, row.codes);
    visit(tensor->scales, row.scales);
    visit(tensor->biases, row.biases);
  }
}

}  // namespace

absl::StatusOr<std::vector<std::byte>> RecordOf(const KvRows& rows) {
  PREFIXD_RETURN_IF_ERROR(CheckWrapped(rows.keep, rows.max_size, rows.offset));
  if (rows.rows < rows.max_size) {
    return BadRecord(absl::StrCat("a cache of at most ", rows.max_size, " tokens holds ", rows.rows,
                                  " at offset ", rows.offset));
  }
  const size_t skipped = rows.rows - rows.max_size;  // after the kept ones
  std::vector<std::byte> record;
  ForEachPart(rows, [&](const std::vector<std::byte>& part, size_t row) {
    for (size_t head = 0; head < rows.kv_heads; ++head) {
      const auto at = [&](size_t index) {
        return part.begin() + static_cast<ptrdiff_t>((head * rows.rows + index) * row);
      };
      record.insert(record.end(), at(0), at(rows.keep));
      record.insert(record.end(), at(rows.keep + skipped), at(rows.rows));
    }
  });
  return record;
}

absl::StatusOr<KvRows> RowsOfRecord(const KvRows& like, uint32_t offset,
                                    std::span<const std::byte> record) {
  PREFIXD_RETURN_IF_ERROR(CheckWrapped(like.keep, like.max_size, offset));
  KvRows rows = like;
  rows.rows = like.max_size;
  rows.offset = offset;
  const uint64_t count = uint64_t{rows.kv_heads} * rows.rows;
  uint64_t wanted = 0;
  ForEachPart(rows, [&](const std::vector<std::byte>&, uint64_t row) { wanted += count * row; });
  if (record.size() != wanted) {
    return BadRecord(absl::StrCat(
        "of ", record.size(), " bytes, ", rows.max_size, " tokens in ",
        quant::ToString(quant::KvFormat{rows.key.format, rows.value.format}), " have ", wanted));
  }
  ForEachPart(rows, [&](std::vector<std::byte>& part, uint64_t row) {
    const auto taken = record.first(count * row);
    part.assign(taken.begin(), taken.end());
    record = record.subspan(taken.size());
  });
  return rows;
}

}  // namespace prefixd::interop
