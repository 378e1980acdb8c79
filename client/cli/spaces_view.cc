// prefixctl spaces:
//
//   space         model     block  formats  blocks  tokens  ends      ram ssd unpacked  ram only
//   3f2a9c0d11e4  kjv-7.7m     64  raw/f16      48   3,064     4  9.3 MiB  9.3 MiB       0 B
#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/size.h"
#include "client/cli/compression.h"
#include "client/cli/names.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"

namespace prefixd::cli {
namespace {

using Align = Table::Align;

std::string Digest(const std::string& bytes) { return bytes.empty() ? "none" : HexId(bytes); }

// Returns runs of consecutive layers: "0-15, 17".
std::string Layers(const google::protobuf::RepeatedField<uint32_t>& layers) {
  std::string text;
  for (int first = 0; first < layers.size();) {
    int last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ", ", layers[first]);
    if (last > first) absl::StrAppend(&text, "-", layers[last]);
    first = last + 1;
  }
  return text;
}

void AddRope(const v1::Rope& rope, Table* table) {
  table->AddRow({"rope", absl::StrCat("theta ", rope.theta(), ", ", rope.rotary_dims(), " dims, ",
                                      rope.interleaved() ? "pairs (2i, 2i + 1)" : "halves",
                                      rope.key_before_rope() ? ", keys before rope" : "",
                                      rope.scaling().empty() ? "" : ", scaling ",
                                      PrintableText(rope.scaling()))});
}

std::string Identity(const v1::ListSpacesReply::Space& space) {
  const v1::SpaceIdentity& identity = space.identity();
  Table table({{""}, {""}});
  table.AddRow({"model", identity.model()});
  table.AddRow({"weights", Digest(identity.weights_digest())});
  table.AddRow({"adapter", Digest(identity.adapter_digest())});
  table.AddRow({"tokenizer", Digest(identity.tokenizer_digest())});
  table.AddRow({"role", identity.draft() ? "draft" : "target"});
  if (!identity.target_digest().empty()) {
    table.AddRow({"target", Digest(identity.target_digest())});
  }
  AddRope(identity.rope(), &table);
  table.AddRow(
      {"parallel", absl::StrCat("tensor ", std::max(1u, identity.tensor_parallel()), ", pipeline ",
                                std::max(1u, identity.pipeline_parallel()))});
  table.AddRow({"tenant", space.tenant()});
  if (!space.salt_digest().empty()) {
    table.AddRow({"salt", absl::StrCat("of digest ", HexId(space.salt_digest()))});
  }
  table.AddRow({"block_tokens", absl::StrCat(space.stats().block_tokens())});
  table.AddRow({"formats", absl::StrJoin(space.stats().formats(), " ")});
  for (const FormatRatio& format : Compression(identity)) {
    char ratio[32];
    std::snprintf(ratio, sizeof(ratio), "%.2f", format.ratio);
    table.AddRow({"compression", absl::StrCat(ratio, " of raw elements: ", format.format)});
  }
  for (const v1::LayerGroup& group : identity.groups()) {
    table.AddRow(
        {"group", absl::StrCat(group.name(), ": ", NameOf(group.kind()), ", layers ",
                               Layers(group.layers()), ", ", group.kv_heads(), " kv heads, key ",
                               group.key_dim(), ", value ", group.value_dim())});
  }
  return table.Text(2);
}

std::string OtherHosts(const v1::ListSpacesReply& reply) {
  if (!reply.other_hosts_error().empty()) {
    return absl::StrCat(
        "\nwhat other hosts have is not known: ", PrintableText(reply.other_hosts_error()), "\n");
  }
  if (reply.other_hosts().empty()) return "";
  std::string text = "\nspaces that only other hosts have differ from it in\n";
  for (const v1::ListSpacesReply::ToldSpace& told : reply.other_hosts()) {
    absl::StrAppend(&text, "  ", ShortId(told.space_id()), " (",
                    PrintableText(told.identity().model()), ", on ", PrintableText(told.host()),
                    " ", UptimeText(told.age_s()),
                    " ago): ", absl::StrJoin(told.differing_fields(), "; "), "\n");
  }
  return text;
}

}  // namespace

std::string SpaceTable(const google::protobuf::RepeatedPtrField<v1::SpaceStats>& spaces,
                       size_t indent) {
  Table table({{"space"},
               {"model"},
               {"block", Align::kRight},
               {"formats"},
               {"blocks", Align::kRight},
               {"tokens", Align::kRight},
               {"ends", Align::kRight},
               {"ram", Align::kRight},
               {"ssd unpacked", Align::kRight},
               {"ram only", Align::kRight}});
  for (const v1::SpaceStats& space : spaces) {
    table.AddRow({ShortId(space.space_id()), space.model(), CountText(space.block_tokens()),
                  absl::StrJoin(space.formats(), " "), CountText(space.blocks()),
                  CountText(space.stored_tokens()), CountText(space.ends()),
                  base::FormatBytes(space.ram_extent_bytes()),
                  base::FormatBytes(space.ssd_payload_bytes()),
                  base::FormatBytes(space.dirty_bytes())});
  }
  return table.Text(indent);
}

std::string SpacesView(const v1::ListSpacesReply& reply) {
  if (reply.spaces().empty()) return "no spaces yet: no worker has opened one\n";
  google::protobuf::RepeatedPtrField<v1::SpaceStats> stats;
  for (const v1::ListSpacesReply::Space& space : reply.spaces()) *stats.Add() = space.stats();
  return SpaceTable(stats, 0);
}

std::string ExplainView(const v1::ListSpacesReply& reply, const std::string& space_id) {
  std::string text, others;
  std::vector<const v1::ListSpacesReply::Space*> differing;
  for (const v1::ListSpacesReply::Space& space : reply.spaces()) {
    if (space.stats().space_id() == space_id) {
      text = absl::StrCat("space ", HexId(space_id), "\n", Identity(space));
    } else {
      differing.push_back(&space);
    }
  }
  // The nearest first: it is the one that was meant to be shared.
  std::stable_sort(differing.begin(), differing.end(), [](const auto* a, const auto* b) {
    return a->differing_fields_size() < b->differing_fields_size();
  });
  for (const v1::ListSpacesReply::Space* space : differing) {
    absl::StrAppend(&others, "  ", ShortId(space->stats().space_id()), " (",
                    PrintableText(space->identity().model()),
                    "): ", absl::StrJoin(space->differing_fields(), "; "), "\n");
  }
  const std::string elsewhere = OtherHosts(reply);
  if (others.empty() && elsewhere.empty()) return text + "\nno other space to compare with\n";
  if (!others.empty()) absl::StrAppend(&text, "\nother spaces differ from it in\n", others);
  return text + elsewhere;
}

}  // namespace prefixd::cli
