#include "element_rows.h"

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/page_layout.h"
#include "kernels/quantize.h"

namespace prefixd::client {
namespace {

template <typename View>
absl::Status CheckTensor(const char* caller, const char* name, const View& view, uint32_t dim) {
  if (view.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(caller, ": ", name, " has no data"));
  }
  if (view.dtype < Dtype::kF32 || view.dtype > Dtype::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat(
        caller, ": ", name, " dtype is ", static_cast<int>(view.dtype), ", known are 1 to 3"));
  }
  if (view.token_stride != 0 && view.token_stride < dim) {
    return absl::InvalidArgumentError(absl::StrCat(caller, ": ", name, " token_stride is ",
                                                   view.token_stride, ", a row has ", dim));
  }
  return absl::OkStatus();
}

template <typename View>
absl::Status Check(const char* caller, const block::LayerGroup& group, const View& key,
                   const View& value) {
  PREFIXD_RETURN_IF_ERROR(CheckTensor(caller, "key", key, group.key_dim));
  return block::StoresValues(group) ? CheckTensor(caller, "value", value, group.value_dim)
                                    : absl::OkStatus();
}

// Returns the view from its first row of `rows` on, with strides of 0 filled in.
template <typename Elements, typename Byte, typename View>
Elements From(const View& view, uint32_t dim, const PageRows& rows) {
  const size_t token_stride = view.token_stride ? view.token_stride : dim;
  return {.data = static_cast<Byte*>(view.data) +
                  rows.first_row * token_stride * quant::DtypeBytes(view.dtype),
          .dtype = view.dtype,
          .head_stride = view.head_stride ? view.head_stride : rows.tensor_tokens * token_stride,
          .token_stride = token_stride};
}

// Calls visit(format, run, offset of its units in the page) for K and, if the group stores it, V.
template <typename Visit>
void ForRuns(const PageRows& rows, Visit visit) {
  const block::LayerGroup& group = rows.group;
  const quant::KvFormat& format = group.ladder[rows.rung];
  const block::PageLayout layout = block::LayoutOfPage(group, rows.rung, rows.page_tokens);
  kernels::UnitRun run{.side = quant::Side::kKey,
                       .heads = group.kv_heads,
                       .dim = group.key_dim,
                       .page_tokens = rows.page_tokens,
                       .first_token = rows.first_slot,
                       .tokens = rows.tokens};
  visit(format.key, run, block::KeyUnitOffset(group, layout, rows.layer, 0));
  if (!block::StoresValues(group)) return;
  run.side = quant::Side::kValue;
  run.dim = group.value_dim;
  visit(format.value, run, block::ValueUnitOffset(group, layout, rows.layer, 0));
}

// Returns the elements as packed bytes of raw rows.
template <typename Packed, typename View>
Packed AsPacked(const View& view) {
  const size_t element = quant::DtypeBytes(view.dtype);
  Packed packed;
  packed.codes = view.data;
  packed.codes_head_stride = view.head_stride * element;
  packed.codes_token_stride = view.token_stride * element;
  return packed;
}

template <typename View>
bool IsStoredAs(const quant::TensorFormat& format, const View& view) {
  return format.codec == quant::Codec::kRaw && format.dtype == view.dtype;
}
// Whether the page holds just these elements, so that whole runs of rows can be copied.
template <typename View>
bool IsCopy(const PageRows& rows, const View& key, const View& value) {
  const quant::KvFormat& format = rows.group.ladder[rows.rung];
  return IsStoredAs(format.key, key) &&
         (!block::StoresValues(rows.group) || IsStoredAs(format.value, value));
}

bool IsKey(const kernels::UnitRun& run) { return run.side == quant::Side::kKey; }

}  // namespace

absl::Status CheckTensors(const char* caller, const block::LayerGroup& group, const TensorView& key,
                          const TensorView& value) {
  return Check(caller, group, key, value);
}
absl::Status CheckTensors(const char* caller, const block::LayerGroup& group,
                          const MutableTensorView& key, const MutableTensorView& value) {
  return Check(caller, group, key, value);
}

void QuantizeIntoPage(const PageRows& rows, const TensorView& key, const TensorView& value,
                      std::byte* page) {
  if (IsCopy(rows, key, value)) {
    return CopyIntoPage(rows, AsPacked<PackedView>(key), AsPacked<PackedView>(value), page);
  }
  ForRuns(rows,
          [&](const quant::TensorFormat& format, const kernels::UnitRun& run, uint64_t units) {
            const auto from =
                From<kernels::TensorView, const std::byte>(IsKey(run) ? key : value, run.dim, rows);
            kernels::Quantize(format, from, run, page + units);
          });
}

void DequantizeOutOfPage(const PageRows& rows, const std::byte* page, Caches caches,
                         const MutableTensorView& key, const MutableTensorView& value) {
  if (IsCopy(rows, key, value)) {
    return CopyOutOfPage(rows, page, caches, AsPacked<MutablePackedView>(key),
                         AsPacked<MutablePackedView>(value));
  }
  ForRuns(
      rows, [&](const quant::TensorFormat& format, const kernels::UnitRun& run, uint64_t units) {
        const auto to =
            From<kernels::MutableTensorView, std::byte>(IsKey(run) ? key : value, run.dim, rows);
        kernels::Dequantize(format, page + units, run, to);
      });
}

}  // namespace prefixd::client
