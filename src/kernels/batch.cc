#include "kernels/batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "kernels/common/check_attention.h"
#include "kernels/decode/decode.h"

namespace prefixd::kernels {
namespace {

AttentionShape ShapeOf(const AttentionShape& shape, const BatchItem& item) {
  AttentionShape own = shape;
  own.first_position = item.first_position;
  return own;
}

}  // namespace

absl::Status AttendBatch(std::span<const BatchItem> items, std::span<const quant::KvFormat> formats,
                         const AttentionShape& shape) {
  AttentionShape checked = shape;
  for (size_t i = 0; i < items.size(); ++i) {
    const BatchItem& item = items[i];
    const absl::StatusOr<AttentionShape> own =
        CheckAttention(item.table, formats, item.q, item.out, ShapeOf(shape, item));
    if (!own.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: item ", i, ": ", own.status().message()));
    }
    checked = *own;
  }
  const bool together = !items.empty() && shape.mode == AttentionMode::kFast &&
                        std::all_of(items.begin(), items.end(), [&](const BatchItem& item) {
                          return CanDecode(item.table, formats, ShapeOf(checked, item));
                        });
  if (together) return Decode(items, formats, checked);
  for (const BatchItem& item : items) {
    PREFIXD_RETURN_IF_ERROR(Attend(item.table, formats, item.q, item.out, ShapeOf(shape, item)));
  }
  return absl::OkStatus();
}

}  // namespace prefixd::kernels
