#include "client/cli/events.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/add_command.h"
#include "client/cli/json.h"
#include "client/cli/names.h"
#include "client/cli/units.h"

namespace prefixd::cli {
namespace {

std::string NameOfTier(int tier) {
  switch (tier) {
    case v1::StoredBlock::TIER_RAM:
      return "RAM";
    case v1::StoredBlock::TIER_SSD:
      return "SSD";
    case v1::StoredBlock::TIER_MIXED:
      return "RAM and SSD in part";
    default:
      return absl::StrCat("unknown (", tier, ")");
  }
}

std::string TiersText(const google::protobuf::RepeatedField<int>& tiers) {
  return absl::StrJoin(
      tiers, " + ", [](std::string* text, int tier) { absl::StrAppend(text, NameOfTier(tier)); });
}

std::string BlockText(const v1::StoredBlock& block) {
  return absl::StrCat("space ", ShortId(block.space_id()), "  block ", HexId(block.block_hash()),
                      "  tokens ", CountText(block.first_token()), " to ",
                      CountText(block.first_token() + block.tokens()));
}

// What is told of a block that is stored, behind its names.
std::string StateText(const v1::StoredBlock& block) {
  std::string text = block.tiers().empty() ? "  without pages" : "";
  if (!block.tiers().empty()) absl::StrAppend(&text, "  in ", TiersText(block.tiers()));
  if (!block.windows().empty()) {
    absl::StrAppend(&text, "  windows of groups ", absl::StrJoin(block.windows(), ", "));
  }
  if (!block.snapshots().empty()) {
    absl::StrAppend(&text, "  snapshots at ", absl::StrJoin(block.snapshots(), ", "));
  }
  if (!block.token_ids().empty()) {
    absl::StrAppend(&text, "  ids ", absl::StrJoin(block.token_ids(), " "));
  }
  return text;
}

std::string EventText(const v1::BlockEvent& event) {
  const v1::StoredBlock& block = event.block();
  switch (event.kind()) {
    case v1::BlockEvent::KIND_STORED:
      return absl::StrCat("stored   ", BlockText(block), StateText(block), "\n");
    case v1::BlockEvent::KIND_CHANGED:
      return absl::StrCat("changed  ", BlockText(block), StateText(block), ", before in ",
                          TiersText(event.tiers_before()), "\n");
    case v1::BlockEvent::KIND_REMOVED:
      return absl::StrCat("removed  ", BlockText(block), "\n");
    case v1::BlockEvent::KIND_CLEARED:
      return absl::StrCat("cleared  space ", ShortId(block.space_id()), "\n");
    default:
      return absl::StrCat("unknown  (", static_cast<int>(event.kind()), ")\n");
  }
}

}  // namespace

void DeclareEvents(CLI::App& app, Options* options) {
  CLI::App* events = AddCommand(
      app, options, Command::kEvents, "events",
      "what is stored, block by block, and every change, as it happens",
      "First a snapshot, then the changes, until prefixd or you stop it (Ctrl-C). With --json a\n"
      "reply of WatchEvents in each line.\n"
      "Examples:\n  prefixctl events --space 3f2a\n  prefixctl --json events --once | jq '.blocks "
      "| "
      "length'");
  events->add_option("--space", options->space, "only of this space")->type_name("ID");
  events->add_flag("--tokens", options->event_tokens, "the token ids of blocks too");
  events->add_flag("--once", options->events_once, "end after the snapshot");
}

std::string EventsView(const v1::WatchEventsReply& reply, bool was_whole) {
  std::string text;
  if (reply.snapshot_begins()) absl::StrAppend(&text, "snapshot begins\n");
  for (const v1::StoredBlock& block : reply.blocks()) {
    absl::StrAppend(&text, "there    ", BlockText(block), StateText(block), "\n");
  }
  for (const v1::BlockEvent& event : reply.events()) absl::StrAppend(&text, EventText(event));
  if (reply.whole() && (reply.snapshot_begins() || !was_whole)) {
    absl::StrAppend(&text, "snapshot complete at event ", reply.sequence(), " of epoch ",
                    HexId(reply.epoch()),
                    reply.index_loading() ? "; prefixd is still loading its index\n" : "\n");
  }
  return text;
}

absl::Status RunEvents(DaemonCalls& calls, const Options& options, const std::string& space_id,
                       std::ostream& out) {
  v1::WatchEventsRequest request;
  request.set_space_id(space_id);
  request.set_with_tokens(options.event_tokens);
  bool whole = false;
  return calls.WatchEvents(request, [&](const v1::WatchEventsReply& reply) {
    out << (options.json ? ReplyJson(reply) : EventsView(reply, whole)) << std::flush;
    whole = reply.whole();
    return out.good() && !(options.events_once && whole);
  });
}

}  // namespace prefixd::cli
