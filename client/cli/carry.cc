#include "client/cli/carry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/size.h"
#include "base/status.h"
#include "client/cli/carried_file.h"
#include "client/cli/carried_space.h"

namespace prefixd::cli {
namespace {

absl::Status Bad(const CarryRequest& request, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(request.path, ": ", what));
}

absl::StatusOr<std::vector<uint32_t>> TokensFor(const CarryRequest& request,
                                                const CarriedFile& file) {
  const std::vector<uint32_t>& tokens = request.tokens.empty() ? file.tokens : request.tokens;
  if (tokens.empty()) {
    return Bad(request, "does not say of which tokens it is: give them with --tokens-file");
  }
  // A file that holds only states does not say how many tokens they cover.
  const uint32_t held = file.carried.tokens;
  if (held == 0 || tokens.size() == held) return tokens;
  return Bad(request,
             absl::StrCat("holds ", held, " tokens, ", tokens.size(), " token ids are given"));
}

absl::StatusOr<SpaceSpec> SpecFor(const CarryRequest& request, const CarriedFile& file) {
  if (!request.spec.has_value() && !file.spec.has_value()) {
    return Bad(request, "does not say whose it is: give --identity or --space");
  }
  SpaceSpec spec = request.spec.has_value() ? *request.spec : *file.spec;
  const bool has_layers = !spec.layers.empty();
  for (size_t i = 0; i < file.carried.layers.size(); ++i) {
    const LayerSpec own = SpecOf(file.carried.layers[i]);
    if (!has_layers) {
      spec.layers.push_back(own);
    } else if (i < spec.layers.size() && spec.layers[i].formats.empty() &&
               spec.layers[i].kind != LayerKind::kState) {
      spec.layers[i].formats = own.formats;
    } else {
      continue;
    }
    if (!file.values_transposed) continue;
    for (KvFormat& format : spec.layers[i].formats) format.value.layout = Layout::kTransposed;
  }
  return spec;
}

}  // namespace

absl::StatusOr<CarryReport> Import(const CarryRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const CarriedFile file, ReadCarriedFile(request));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, TokensFor(request, file));
  PREFIXD_ASSIGN_OR_RETURN(const SpaceSpec spec, SpecFor(request, file));
  const absl::StatusOr<StoredLayers> stored = StoreLayers(request, spec, tokens, file.carried);
  if (absl::IsInvalidArgument(stored.status())) {
    return Bad(request, std::string(stored.status().message()));
  }
  PREFIXD_RETURN_IF_ERROR(stored.status());
  return CarryReport{.space = stored->space,
                     .tokens = static_cast<uint32_t>(tokens.size()),
                     .stored = stored->stored,
                     .bytes = BytesOf(file.carried),
                     .format = FormatName(file.carried)};
}

absl::StatusOr<CarryReport> Export(const CarryRequest& request) {
  if (!request.spec.has_value() || request.spec->layers.empty()) {
    return Bad(request, "export wants a space, or an identity with layers");
  }
  PREFIXD_ASSIGN_OR_RETURN(LoadedLayers loaded, LoadLayers(request, *request.spec));
  CarryReport report{.space = loaded.space,
                     .tokens = loaded.carried.tokens,
                     .asked = static_cast<uint32_t>(request.tokens.size())};
  if (report.tokens == 0) return report;
  report.format = FormatName(loaded.carried);
  report.bytes = BytesOf(loaded.carried);
  CarriedFile file{.carried = std::move(loaded.carried),
                   .tokens = {request.tokens.begin(), request.tokens.begin() + report.tokens},
                   .spec = request.spec,
                   .values_transposed = loaded.values_transposed};
  PREFIXD_RETURN_IF_ERROR(WriteCarriedFile(request, file));
  return report;
}

std::string ImportView(const CarryRequest& request, const CarryReport& report) {
  return absl::StrCat(
      "imported ", report.tokens, " tokens in ", report.format, " (",
      base::FormatBytes(report.bytes), ") of ", request.path, " into space ",
      report.space.substr(0, 12), ": ", report.stored, " stored, ", report.tokens - report.stored,
      " known already\n",
      report.whose.empty() ? "" : absl::StrCat("the space is ", report.whose, "\n"));
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
                               {"bytes", report.bytes},        {"format", report.format},
                               {"whose", report.whose}};
  return json.dump() + "\n";
}

}  // namespace prefixd::cli
