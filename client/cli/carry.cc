#include "client/cli/carry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "base/size.h"
#include "base/status.h"
#include "client/cli/identity_file.h"
#include "client/cpp/convert.h"
#include "interop/prompt_cache.h"

namespace prefixd::cli {
namespace {

using interop::KvRows;
using interop::RowsOfTensor;

constexpr char kTokensKey[] = "prefixd_tokens", kIdentityKey[] = "prefixd_identity";

absl::Status Bad(const CarryRequest& request, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(request.path, ": ", what));
}

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

// A client, attached, and the space.
struct Opened {
  Client client;
  Space space;
};

absl::StatusOr<Opened> Open(const CarryRequest& request, const SpaceSpec& spec) {
  ClientOptions options;
  options.address = request.server;
  options.name = "prefixctl";
  options.connect_deadline = request.timeout;
  Client client(options);
  Result<Space> space = client.OpenSpace(spec);
  if (!space.ok()) return ToAbsl(space.status);
  if (!client.WaitAttached(request.timeout)) return absl::UnavailableError("not attached");
  return Opened{std::move(client), std::move(space.value())};
}

size_t HeadBytes(size_t rows, uint32_t row) { return rows * row; }

template <typename View, typename Tensor>
View ViewOf(Tensor& tensor, uint32_t rows, uint32_t begin) {
  const quant::RowBytes row = quant::BytesOfRow(tensor.format, tensor.dim);
  View view;
  view.codes = tensor.codes.data() + size_t{begin} * row.codes;
  view.codes_token_stride = row.codes;
  view.codes_head_stride = HeadBytes(rows, row.codes);
  if (row.scales != 0) {
    view.scales = tensor.scales.data() + size_t{begin} * row.scales;
    view.scales_token_stride = row.scales;
    view.scales_head_stride = HeadBytes(rows, row.scales);
  }
  if (row.biases != 0) view.biases = tensor.biases.data() + size_t{begin} * row.biases;
  return view;
}

uint64_t BytesOf(const KvRows& rows) {
  uint64_t bytes = 0;
  for (const RowsOfTensor* tensor : {&rows.key, &rows.value}) {
    bytes += tensor->codes.size() + tensor->scales.size() + tensor->biases.size();
  }
  return bytes;
}

quant::KvFormat FormatOf(const KvRows& rows) { return {rows.key.format, rows.value.format}; }

// What engines give and get, whatever the page's layout.
quant::KvFormat InRows(const KvFormat& format) {
  const quant::KvFormat stored = client::FromPublic(format);
  return {quant::InRows(stored.key), quant::InRows(stored.value)};
}

// --- import

absl::StatusOr<std::vector<KvRows>> ReadLayers(const CarryRequest& request,
                                               const interop::PromptCache& file) {
  std::vector<KvRows> layers;
  for (const interop::MlxCache& cache : file.layers) {
    const std::string where = absl::StrCat("layer ", layers.size());
    absl::StatusOr<KvRows> rows = interop::ReadKvRows(cache);
    if (!rows.ok()) return Bad(request, absl::StrCat(where, ": ", rows.status().message()));
    if (!rows->is_prefix()) {
      return Bad(request, absl::StrCat(where, " has wrapped at offset ", rows->offset,
                                       " and holds ", rows->rows, " tokens: it is no prefix"));
    }
    if (!layers.empty() && rows->offset != layers[0].offset) {
      return Bad(request, absl::StrCat(where, " has ", rows->offset, " tokens, layer 0 has ",
                                       layers[0].offset));
    }
    layers.push_back(*std::move(rows));
  }
  return layers;
}

absl::StatusOr<std::vector<uint32_t>> TokensFor(const CarryRequest& request,
                                                const interop::PromptCache& file, uint32_t wanted) {
  std::vector<uint32_t> tokens = request.tokens;
  const auto stored = file.metadata.find(kTokensKey);
  if (tokens.empty() && stored != file.metadata.end()) {
    const std::vector<std::string> ids = absl::StrSplit(stored->second, ',', absl::SkipEmpty());
    for (const std::string& id : ids) {
      if (!absl::SimpleAtoi(id, &tokens.emplace_back())) {
        return Bad(request, absl::StrCat("metadata ", kTokensKey, " holds \"", id, "\""));
      }
    }
  }
  if (tokens.empty()) {
    return Bad(request, "does not say of which tokens it is: give them with --tokens-file");
  }
  if (tokens.size() == wanted) return tokens;
  return Bad(request,
             absl::StrCat("holds ", wanted, " tokens, ", tokens.size(), " token ids are given"));
}

absl::StatusOr<SpaceSpec> SpecFor(const CarryRequest& request, const interop::PromptCache& file,
                                  const std::vector<KvRows>& layers) {
  SpaceSpec spec;
  const auto stored = file.metadata.find(kIdentityKey);
  if (request.spec.has_value()) {
    spec = *request.spec;
  } else if (stored != file.metadata.end()) {
    PREFIXD_ASSIGN_OR_RETURN(spec, ReadIdentity(stored->second));
  } else {
    return Bad(request, "does not say whose it is: give --identity or --space");
  }
  if (spec.layers.empty()) {
    for (const KvRows& rows : layers) {
      LayerSpec& layer = spec.layers.emplace_back();
      layer.kv_heads = rows.kv_heads;
      layer.key_dim = rows.key.dim;
      layer.value_dim = rows.value.dim;
      layer.formats = {
          {.key = client::ToPublic(rows.key.format), .value = client::ToPublic(rows.value.format)}};
    }
  }
  if (spec.layers.size() == layers.size()) return spec;
  return Bad(request,
             absl::StrCat("has ", layers.size(), " layers, the space has ", spec.layers.size()));
}

// The rung that all layers of the file are in.
absl::StatusOr<uint32_t> RungOf(const CarryRequest& request, const SpaceSpec& spec,
                                const std::vector<KvRows>& layers) {
  for (uint32_t rung = 0; rung < spec.layers[0].formats.size(); ++rung) {
    bool fits = true;
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerSpec& layer = spec.layers[i];
      fits = fits && rung < layer.formats.size() && layer.kv_heads == layers[i].kv_heads &&
             layer.key_dim == layers[i].key.dim && layer.value_dim == layers[i].value.dim &&
             InRows(layer.formats[rung]) == FormatOf(layers[i]);
    }
    if (fits) return rung;
  }
  const KvRows& rows = layers[0];
  return Bad(request, absl::StrCat("holds ", rows.kv_heads, " heads of ", rows.key.dim, " and ",
                                   rows.value.dim, " elements in ", quant::ToString(FormatOf(rows)),
                                   ", the space has no such format"));
}

absl::StatusOr<uint32_t> Store(const CarryRequest& request, Plan& plan,
                               const std::vector<KvRows>& layers) {
  const uint32_t tokens = layers[0].rows;
  uint32_t stored = 0;
  const auto commit = [&](uint32_t end) -> absl::Status {
    const Result<CommitInfo> info =
        plan.Commit(end, {.sequence_end = end == tokens, .deadline = request.timeout});
    if (!info.ok()) return ToAbsl(info.status);
    stored += info.value().stored_tokens;
    return absl::OkStatus();
  };
  uint32_t end = 0;
  for (const TokenRun run : std::vector<TokenRun>(plan.mine().begin(), plan.mine().end())) {
    for (size_t i = 0; i < layers.size(); ++i) {
      PREFIXD_RETURN_IF_ERROR(
          ToAbsl(plan.WritePacked(static_cast<int>(i), run.begin, run.end - run.begin,
                                  ViewOf<PackedView>(layers[i].key, layers[i].rows, run.begin),
                                  ViewOf<PackedView>(layers[i].value, layers[i].rows, run.begin))));
    }
    PREFIXD_RETURN_IF_ERROR(commit(run.end));
    end = run.end;
  }
  if (end != tokens) PREFIXD_RETURN_IF_ERROR(commit(tokens));
  return stored;
}

// --- export

// The lease in the format that has the most tokens.
Lease LongestLease(Space& space, const CarryRequest& request, uint32_t* format) {
  Lease longest;
  uint32_t most = 0;
  for (uint32_t i = 0; i < request.spec->layers[0].formats.size(); ++i) {
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

absl::StatusOr<KvRows> GatherLayer(Lease& lease, int index, const LayerSpec& layer, uint32_t format,
                                   uint32_t tokens) {
  const quant::KvFormat packed = InRows(layer.formats[format]);
  KvRows rows;
  rows.kv_heads = layer.kv_heads;
  rows.rows = rows.offset = tokens;
  const auto prepare = [&](const quant::TensorFormat& of, uint32_t dim, RowsOfTensor* tensor) {
    const quant::RowBytes row = quant::BytesOfRow(of, dim);
    const size_t count = size_t{layer.kv_heads} * tokens;
    tensor->format = of;
    tensor->dim = dim;
    tensor->codes.resize(count * row.codes);
    tensor->scales.resize(count * row.scales);
    tensor->biases.resize(count * row.biases);
  };
  prepare(packed.key, layer.key_dim, &rows.key);
  prepare(packed.value, layer.value_dim, &rows.value);
  PREFIXD_RETURN_IF_ERROR(
      ToAbsl(lease.Gather(index, 0, tokens, ViewOf<MutablePackedView>(rows.key, tokens, 0),
                          ViewOf<MutablePackedView>(rows.value, tokens, 0))));
  return rows;
}

}  // namespace

absl::StatusOr<CarryReport> Import(const CarryRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const interop::PromptCache file, interop::ReadPromptCache(request.path));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<KvRows> layers, ReadLayers(request, file));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens,
                           TokensFor(request, file, layers[0].offset));
  PREFIXD_ASSIGN_OR_RETURN(const SpaceSpec spec, SpecFor(request, file, layers));
  PREFIXD_ASSIGN_OR_RETURN(const uint32_t rung, RungOf(request, spec, layers));
  PREFIXD_ASSIGN_OR_RETURN(Opened opened, Open(request, spec));
  CarryReport report{.space = opened.space.id(),
                     .tokens = layers[0].rows,
                     .format = quant::ToString(FormatOf(layers[0]))};
  for (const KvRows& rows : layers) report.bytes += BytesOf(rows);
  Plan plan = opened.space.Reserve(
      tokens, {.deadline = request.timeout, .write_format = rung, .readable = uint64_t{1} << rung});
  PREFIXD_RETURN_IF_ERROR(ToAbsl(plan.status()));
  PREFIXD_ASSIGN_OR_RETURN(report.stored, Store(request, plan, layers));
  return report;
}

absl::StatusOr<CarryReport> Export(const CarryRequest& request) {
  if (!request.spec.has_value() || request.spec->layers.empty()) {
    return Bad(request, "export wants a space, or an identity with layers");
  }
  const SpaceSpec& spec = *request.spec;
  PREFIXD_ASSIGN_OR_RETURN(Opened opened, Open(request, spec));
  uint32_t format = 0;
  Lease lease = LongestLease(opened.space, request, &format);
  if (!lease.match().status.ok()) return ToAbsl(lease.match().status);
  CarryReport report{.space = opened.space.id(),
                     .tokens = lease.restorable_tokens(),
                     .asked = static_cast<uint32_t>(request.tokens.size())};
  if (report.tokens == 0) return report;
  report.format = quant::ToString(InRows(spec.layers[0].formats[format]));
  interop::PromptCache file;
  file.style = request.meta_state ? interop::PromptCacheStyle::kMetaState
                                  : interop::PromptCacheStyle::kScalars;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    PREFIXD_ASSIGN_OR_RETURN(const KvRows rows, GatherLayer(lease, static_cast<int>(i),
                                                            spec.layers[i], format, report.tokens));
    report.bytes += BytesOf(rows);
    PREFIXD_ASSIGN_OR_RETURN(file.layers.emplace_back(), interop::MlxCacheOf(rows));
  }
  file.metadata[kIdentityKey] = WriteIdentity(spec);
  file.metadata[kTokensKey] = absl::StrJoin(
      request.tokens.begin(), request.tokens.begin() + static_cast<ptrdiff_t>(report.tokens), ",");
  PREFIXD_RETURN_IF_ERROR(interop::WritePromptCache(request.path, file));
  return report;
}

std::string ImportView(const CarryRequest& request, const CarryReport& report) {
  return absl::StrCat("imported ", report.tokens, " tokens in ", report.format, " (",
                      base::FormatBytes(report.bytes), ") of ", request.path, " into space ",
                      report.space.substr(0, 12), ": ", report.stored, " stored, ",
                      report.tokens - report.stored, " known already\n");
}

std::string ExportView(const CarryRequest& request, const CarryReport& report) {
  if (report.tokens == 0) {
    return absl::StrCat("none of ", report.asked, " tokens is cached: nothing was written\n");
  }
  return absl::StrCat("exported ", report.tokens, " of ", report.asked, " tokens in ",
                      report.format, " (", base::FormatBytes(report.bytes), ") of space ",
                      report.space.substr(0, 12), " to ", request.path, "\n");
}

std::string CarryJson(const CarryReport& report) {
  const nlohmann::json json = {{"space_id", report.space},     {"tokens", report.tokens},
                               {"asked_tokens", report.asked}, {"stored_tokens", report.stored},
                               {"bytes", report.bytes},        {"format", report.format}};
  return json.dump() + "\n";
}

}  // namespace prefixd::cli
