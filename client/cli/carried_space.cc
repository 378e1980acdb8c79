#include "client/cli/carried_space.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::cli {
namespace {

using interop::KvRows;
using interop::RowsOfTensor;

absl::Status ToAbsl(const prefixd::Status& status) {
  switch (status.code) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message);
    case StatusCode::kUnavailable:
    case StatusCode::kDeadline:
      return absl::UnavailableError(status.message);
    default:
      return absl::FailedPreconditionError(status.message);
  }
}

// An attached client and its open space.
struct Opened {
  Client client;
  Space space;
};

absl::StatusOr<Opened> Open(const CarryRequest& request, const SpaceSpec& spec) {
  ClientOptions options;
  options.address = request.server;
  options.token_file = request.token_file;
  options.name = "prefixctl";
  options.connect_deadline = request.timeout;
  Client client(options);
  Result<Space> space = client.OpenSpace(spec);
  if (!space.ok()) return ToAbsl(space.status);
  if (!client.WaitAttached(request.timeout)) return absl::UnavailableError("not attached");
  return Opened{std::move(client), std::move(space.value())};
}

// Returns a view of `tensor`, which has `rows` rows a head, from row `begin` on.
template <typename View, typename Tensor>
View ViewOf(Tensor& tensor, uint32_t rows, uint32_t begin) {
  const quant::RowBytes row = quant::BytesOfStoredRow(tensor.format, tensor.dim);
  View view;
  view.codes = tensor.codes.data() + size_t{begin} * row.codes;
  view.codes_token_stride = row.codes;
  view.codes_head_stride = size_t{rows} * row.codes;
  if (row.scales != 0) {
    view.scales = tensor.scales.data() + size_t{begin} * row.scales;
    view.scales_token_stride = row.scales;
    view.scales_head_stride = size_t{rows} * row.scales;
  }
  if (row.biases != 0) view.biases = tensor.biases.data() + size_t{begin} * row.biases;
  return view;
}

// Returns the format in layout rows, which engines give and get whatever the page's layout.
KvFormat InRows(const KvFormat& format) {
  return {quant::InRows(format.key), quant::InRows(format.value)};
}

KvFormat FormatOf(const KvRows& rows) { return {rows.key.format, rows.value.format}; }

// --- storing

absl::Status CheckLayers(const SpaceSpec& spec, const Carried& carried) {
  if (spec.layers.size() != carried.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", carried.layers.size(), " layers, the space has ", spec.layers.size()));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(CheckFits(carried.layers[i], spec.layers[i]));
  }
  return absl::OkStatus();
}

bool HasRung(const LayerSpec& layer, uint32_t rung, const KvRows& rows) {
  return rung < layer.formats.size() && layer.kv_heads == rows.kv_heads &&
         layer.key_dim == rows.key.dim && layer.value_dim == rows.value.dim &&
         InRows(layer.formats[rung]) == FormatOf(rows);
}

// Returns the rung that all layers with rows are in; 0 if no layer has rows.
absl::StatusOr<uint32_t> RungOf(const SpaceSpec& spec, const Carried& carried) {
  const KvRows* first = nullptr;
  size_t rungs = 1;
  for (size_t i = 0; i < spec.layers.size() && first == nullptr; ++i) {
    if (!carried.layers[i].kept_as_rows()) continue;
    first = &*carried.layers[i].rows;
    rungs = spec.layers[i].formats.size();
  }
  for (uint32_t rung = 0; rung < rungs; ++rung) {
    bool fits = true;
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      const CarriedLayer& layer = carried.layers[i];
      fits = fits && (!layer.kept_as_rows() || HasRung(spec.layers[i], rung, *layer.rows));
    }
    if (fits) return rung;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "holds ", first->kv_heads, " heads of ", first->key.dim, " and ", first->value.dim,
      " elements in ", quant::ToString(FormatOf(*first)), ", the space has no such format"));
}

absl::Status Write(Plan& plan, TokenRun run, const Carried& carried) {
  for (size_t i = 0; i < carried.layers.size(); ++i) {
    const CarriedLayer& layer = carried.layers[i];
    if (!layer.kept_as_rows()) continue;
    const KvRows& rows = *layer.rows;
    PREFIXD_RETURN_IF_ERROR(
        ToAbsl(plan.WritePacked(static_cast<int>(i), run.begin, run.end - run.begin,
                                ViewOf<PackedView>(rows.key, rows.rows, run.begin),
                                ViewOf<PackedView>(rows.value, rows.rows, run.begin))));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Store(const CarryRequest& request, Plan& plan, uint32_t tokens,
                               const Carried& carried) {
  uint32_t stored = 0, end = 0;
  const auto commit = [&](uint32_t to) -> absl::Status {
    const Result<CommitInfo> info =
        plan.Commit(to, {.sequence_end = to == tokens, .deadline = request.timeout});
    if (!info.ok()) return ToAbsl(info.status);
    stored += info.value().stored_tokens;
    end = to;
    return absl::OkStatus();
  };
  for (size_t i = 0; i < carried.layers.size(); ++i) {
    const CarriedLayer& layer = carried.layers[i];
    if (layer.kept_as_rows()) continue;
    PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.PutState(static_cast<int>(i), tokens, layer.state)));
  }
  for (const TokenRun run : std::vector<TokenRun>(plan.missing().begin(), plan.missing().end())) {
    PREFIXD_RETURN_IF_ERROR(Write(plan, run, carried));
    PREFIXD_RETURN_IF_ERROR(commit(run.end));
    request.on_step(run.end, tokens);
  }
  if (end != tokens) PREFIXD_RETURN_IF_ERROR(commit(tokens));
  return stored;
}

// --- loading

const LayerSpec* FirstWithRows(const SpaceSpec& spec) {
  const auto found = std::find_if(spec.layers.begin(), spec.layers.end(), [](const auto& layer) {
    return layer.kind != LayerKind::kState;
  });
  return found == spec.layers.end() ? nullptr : &*found;
}

// Acquires a lease in each format. Returns the lease with the most tokens, and its format in
// `format`.
Lease LongestLease(Space& space, const CarryRequest& request, size_t formats, uint32_t* format) {
  Lease longest;
  uint32_t most = 0;
  for (uint32_t i = 0; i < formats; ++i) {
    Lease lease = space.Acquire(request.tokens, {.deadline = request.timeout,
                                                 .load_deadline = request.timeout,
                                                 .readable = uint64_t{1} << i});
    const uint32_t tokens = lease.WaitAll();
    if (i != 0 && tokens <= most) continue;
    longest = std::move(lease);
    most = tokens;
    *format = i;
  }
  return longest;
}

void Prepare(const quant::TensorFormat& format, uint32_t dim, size_t count, RowsOfTensor* tensor) {
  const quant::RowBytes row = quant::BytesOfStoredRow(format, dim);
  tensor->format = format;
  tensor->dim = dim;
  tensor->codes.resize(count * row.codes);
  tensor->scales.resize(count * row.scales);
  tensor->biases.resize(count * row.biases);
}

// Loads the rows that the layer has after `tokens` tokens: all of them, or its sinks and its
// window.
absl::StatusOr<KvRows> LoadRows(Lease& lease, int index, const LayerSpec& layer, uint32_t rung,
                                uint32_t tokens) {
  if (rung >= layer.formats.size()) {
    return absl::InvalidArgumentError(absl::StrCat("has ", layer.formats.size(), " formats"));
  }
  KvRows rows;
  rows.kv_heads = layer.kv_heads;
  rows.rows = rows.offset = tokens;
  if (layer.kind == LayerKind::kSliding) {
    rows.keep = layer.sink_tokens;
    rows.max_size = layer.sink_tokens + layer.window;
    rows.rows = std::min(tokens, rows.max_size);
  }
  const KvFormat packed = InRows(layer.formats[rung]);
  Prepare(packed.key, layer.key_dim, size_t{layer.kv_heads} * rows.rows, &rows.key);
  Prepare(packed.value, layer.value_dim, size_t{layer.kv_heads} * rows.rows, &rows.value);
  const auto gather = [&](uint32_t row, uint32_t begin, uint32_t count) {
    return ToAbsl(lease.Gather(index, begin, count,
                               ViewOf<MutablePackedView>(rows.key, rows.rows, row),
                               ViewOf<MutablePackedView>(rows.value, rows.rows, row)));
  };
  const uint32_t kept = rows.is_prefix() ? 0 : rows.keep;
  if (kept > 0) PREFIXD_RETURN_IF_ERROR(gather(0, 0, kept));
  PREFIXD_RETURN_IF_ERROR(gather(kept, tokens - (rows.rows - kept), rows.rows - kept));
  return rows;
}

absl::Status LoadLayer(Lease& lease, const LayerSpec& spec, uint32_t rung, uint32_t tokens,
                       size_t index, CarriedLayer* layer) {
  layer->name = absl::StrCat("layer ", index);
  const auto loaded = [&]() -> absl::Status {
    if (spec.kind == LayerKind::kState) {
      layer->state.resize(spec.state_bytes);
      return ToAbsl(lease.GetState(static_cast<int>(index), layer->state));
    }
    PREFIXD_ASSIGN_OR_RETURN(layer->rows,
                             LoadRows(lease, static_cast<int>(index), spec, rung, tokens));
    return absl::OkStatus();
  }();
  if (loaded.ok()) return loaded;
  return absl::Status(loaded.code(), absl::StrCat(layer->name, ": ", loaded.message()));
}

}  // namespace

absl::StatusOr<StoredLayers> StoreLayers(const CarryRequest& request, const SpaceSpec& spec,
                                         std::span<const uint32_t> tokens, const Carried& carried) {
  PREFIXD_RETURN_IF_ERROR(CheckLayers(spec, carried));
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t rung, RungOf(spec, carried));
  PREFIXD_ASSIGN_OR_RETURN(Opened opened, Open(request, spec));
  StoredLayers stored{.space = opened.space.id()};
  Plan plan = opened.space.Reserve(
      tokens, {.deadline = request.timeout, .write_format = rung, .readable = uint64_t{1} << rung});
  PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.status()));
  PREFIXD_ASSIGN_OR_RETURN(stored.stored,
                           Store(request, plan, static_cast<uint32_t>(tokens.size()), carried));
  return stored;
}

absl::StatusOr<LoadedLayers> LoadLayers(const CarryRequest& request, const SpaceSpec& spec) {
  PREFIXD_ASSIGN_OR_RETURN(Opened opened, Open(request, spec));
  const LayerSpec* const first = FirstWithRows(spec);
  uint32_t rung = 0;
  Lease lease =
      LongestLease(opened.space, request, first != nullptr ? first->formats.size() : 1, &rung);
  if (!lease.match().status.ok()) return ToAbsl(lease.match().status);
  LoadedLayers loaded{.space = opened.space.id()};
  loaded.carried.tokens = lease.restorable_tokens();
  if (loaded.carried.tokens == 0) return loaded;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(LoadLayer(lease, spec.layers[i], rung, loaded.carried.tokens, i,
                                      &loaded.carried.layers.emplace_back()));
    request.on_step(i + 1, spec.layers.size());
  }
  loaded.values_transposed =
      first != nullptr && first->formats[rung].value.layout == Layout::kTransposed;
  return loaded;
}

}  // namespace prefixd::cli
