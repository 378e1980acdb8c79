#include "block/layer_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/status.h"
#include "block/page_layout.h"

namespace prefixd::block {
namespace {

constexpr uint32_t kLongestBlockTokens = 128;
constexpr size_t kMaxNameBytes = 64;

// Returns an error like "layer 3: window is 3, must be 0 for kind full". Who opens a space names
// layers and formats; groups and ladders are made of them.
absl::Status Bad(const LayerGroup& group, const char* field, const std::string& seen,
                 const std::string& limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", group.layers.front(), ": ", field, " is ", seen, ", ", limit));
}

absl::Status Bad(const LayerGroup& group, const char* field, uint64_t seen,
                 const std::string& limit) {
  return Bad(group, field, absl::StrCat(seen), limit);
}

absl::Status CheckRange(const LayerGroup& group, const char* field, uint64_t seen, uint64_t least,
                        uint64_t most) {
  if (seen >= least && seen <= most) return absl::OkStatus();
  return Bad(group, field, seen, absl::StrCat("must be ", least, " to ", most));
}

absl::Status CheckUnused(const LayerGroup& group, const char* field, uint64_t seen,
                         const char* where) {
  if (seen == 0) return absl::OkStatus();
  return Bad(group, field, seen, absl::StrCat("must be 0 ", where));
}

absl::Status CheckNameAndLayers(const LayerGroup& group) {
  if (group.name.empty() || group.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("group: name \"", group.name.substr(0, 80),
                                                   "\" has ", group.name.size(),
                                                   " bytes, must be 1 to ", kMaxNameBytes));
  }
  const auto bad = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group.name, ": layers is ", what...));
  };
  if (group.layers.empty()) return bad("empty, must name at least one layer");
  for (size_t i = 0; i < group.layers.size(); ++i) {
    if (group.layers[i] >= kMaxLayers) {
      return bad(group.layers[i], ", must be below ", kMaxLayers);
    }
    if (i > 0 && group.layers[i] <= group.layers[i - 1]) {
      return bad(group.layers[i], " after ", group.layers[i - 1], ", must ascend");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckState(const LayerGroup& group) {
  static constexpr char kWhere[] = "for kind state";
  PREFIXD_RETURN_IF_ERROR(CheckRange(group, "state_bytes", group.state_bytes, 1, kMaxStateBytes));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "kv_heads", group.kv_heads, kWhere));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "key_dim", group.key_dim, kWhere));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "value_dim", group.value_dim, kWhere));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "value_prefix_dim", group.value_prefix_dim, kWhere));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "window", group.window, kWhere));
  PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "sink_tokens", group.sink_tokens, kWhere));
  if (!StoresValues(group)) {
    return Bad(group, "value_source", static_cast<uint64_t>(group.value_source),
               "must be stored (1) for kind state");
  }
  if (!group.ladder.empty()) {
    return Bad(group, "the number of formats", group.ladder.size(), "must be 0 for kind state");
  }
  return absl::OkStatus();
}

absl::Status CheckValueDims(const LayerGroup& group) {
  switch (group.value_source) {
    case ValueSource::kStored:
      PREFIXD_RETURN_IF_ERROR(CheckRange(group, "value_dim", group.value_dim, 1, kMaxHeadDim));
      return CheckUnused(group, "value_prefix_dim", group.value_prefix_dim, "when V is stored");
    case ValueSource::kNone:
      PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "value_dim", group.value_dim, "without V"));
      return CheckUnused(group, "value_prefix_dim", group.value_prefix_dim, "without V");
    case ValueSource::kKeyPrefix:
      PREFIXD_RETURN_IF_ERROR(
          CheckRange(group, "value_prefix_dim", group.value_prefix_dim, 1, group.key_dim));
      if (group.value_dim == group.value_prefix_dim) return absl::OkStatus();
      return Bad(group, "value_dim", group.value_dim,
                 absl::StrCat("must be value_prefix_dim, ", group.value_prefix_dim));
  }
  return Bad(group, "value_source", static_cast<uint64_t>(group.value_source), "must be 1 to 3");
}

// Returns an error like "layer 3, format 0 (mlx_affine/8/64/f16): keys: group_size 64 of
// mlx_affine/8/64/f16 does not divide head_dim 96, accepted here: 32".
absl::Status BadFormat(const LayerGroup& group, uint32_t rung, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("layer ", group.layers.front(), ", format ", rung,
                                                 " (", quant::ToString(group.ladder[rung]),
                                                 "): ", why));
}

absl::Status CheckTensor(const LayerGroup& group, uint32_t rung, const char* side,
                         const quant::TensorFormat& format, uint32_t dim) {
  const absl::Status status = quant::Validate(format, dim);
  if (status.ok()) return status;
  const absl::string_view why = absl::StripPrefix(status.message(), "format: ");
  return BadFormat(group, rung, absl::StrCat(side, ": ", why));
}

absl::Status CheckRung(const LayerGroup& group, uint32_t rung) {
  const quant::KvFormat& format = group.ladder[rung];
  PREFIXD_RETURN_IF_ERROR(CheckTensor(group, rung, "keys", format.key, group.key_dim));
  if (StoresValues(group)) {
    PREFIXD_RETURN_IF_ERROR(CheckTensor(group, rung, "values", format.value, group.value_dim));
  } else if (format.value != format.key) {
    return BadFormat(group, rung, "the values must repeat the key format when none are stored");
  }
  for (uint32_t finer = 0; finer < rung; ++finer) {
    if (group.ladder[finer] == format) {
      return BadFormat(group, rung, absl::StrCat("is format ", finer, " too"));
    }
  }
  if (rung > 0 && TokenBytesPerLayer(group, rung) > TokenBytesPerLayer(group, rung - 1)) {
    return BadFormat(group, rung, "holds more bytes than the format before it: finest first");
  }
  const uint64_t page_bytes = LayoutOfPage(group, rung, kLongestBlockTokens).page_bytes;
  if (page_bytes > kMaxPageBytes) {
    return BadFormat(group, rung,
                     absl::StrCat("makes pages of ", page_bytes, " bytes at ", kLongestBlockTokens,
                                  " tokens, limit ", kMaxPageBytes, ": split the layers"));
  }
  return absl::OkStatus();
}

absl::Status CheckAttention(const LayerGroup& group) {
  PREFIXD_RETURN_IF_ERROR(CheckRange(group, "kv_heads", group.kv_heads, 1, kMaxKvHeads));
  PREFIXD_RETURN_IF_ERROR(CheckRange(group, "key_dim", group.key_dim, 1, kMaxHeadDim));
  PREFIXD_RETURN_IF_ERROR(CheckValueDims(group));
  PREFIXD_RETURN_IF_ERROR(
      CheckUnused(group, "state_bytes", group.state_bytes, "for kinds full and sliding"));
  if (group.kind == LayerKind::kSliding) {
    PREFIXD_RETURN_IF_ERROR(CheckRange(group, "window", group.window, 1, uint32_t{1} << 30));
    PREFIXD_RETURN_IF_ERROR(
        CheckRange(group, "sink_tokens", group.sink_tokens, 0, uint32_t{1} << 30));
  } else {
    PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "window", group.window, "for kind full"));
    PREFIXD_RETURN_IF_ERROR(CheckUnused(group, "sink_tokens", group.sink_tokens, "for kind full"));
  }
  if (group.ladder.empty() || group.ladder.size() > kMaxLadder) {
    return Bad(group, "the number of formats", group.ladder.size(),
               absl::StrCat("must be 1 to ", kMaxLadder));
  }
  for (uint32_t rung = 0; rung < group.ladder.size(); ++rung) {
    PREFIXD_RETURN_IF_ERROR(CheckRung(group, rung));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const LayerGroup& group) {
  PREFIXD_RETURN_IF_ERROR(CheckNameAndLayers(group));
  switch (group.kind) {
    case LayerKind::kFull:
    case LayerKind::kSliding:
      return CheckAttention(group);
    case LayerKind::kState:
      return CheckState(group);
  }
  return Bad(group, "kind", static_cast<uint64_t>(group.kind), "must be 1 to 3");
}

uint64_t TokenBytesPerLayer(const LayerGroup& group, uint32_t rung) {
  const quant::KvFormat& format = group.ladder[rung];
  uint64_t bytes = quant::BytesOfStoredRow(format.key, group.key_dim).total();
  if (StoresValues(group)) {
    bytes += quant::BytesOfStoredRow(format.value, group.value_dim).total();
  }
  return bytes * group.kv_heads;
}

}  // namespace prefixd::block
