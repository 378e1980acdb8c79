// Reserve: what is missing of a sequence, announced before its bytes travel.
#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/verbs/request.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

// Adds the seed of each page that is to be written, in the rung that the plan asks for.
void AddSeeds(const Reservation& reservation, block::ReservePlan* plan) {
  for (size_t i = 0; i < plan->blocks.size(); ++i) {
    block::BlockPlan& block = plan->blocks[i];
    block.seeds.resize(block.rungs.size());
    for (uint32_t group = 0; group < block.rungs.size(); ++group) {
      if (block.rungs[group] == block::kNoLimit) continue;
      block.seeds[group] = block::CheckSeed(reservation.NameOf(i, group, block.rungs[group]));
    }
  }
}

absl::Status TooManyAnnounced(const Context& context, const Sessions& sessions,
                              const Session& session, size_t more) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "reserve: ", sessions.announced_bytes() / sizeof(block::Token), " tokens of ",
      context.in_flight_share_bytes.load() / 2 / sizeof(block::Token), " are announced, ",
      session.announced_bytes.load() / sizeof(block::Token), " of them by this session; with ",
      more, " more it would have more than it leaves to others"));
}

absl::Status CheckTurnEnds(const ReserveRequest& request) {
  if (request.turn_ends.size() > kMaxEnds) {
    return absl::InvalidArgumentError(
        absl::StrCat("reserve: ", request.turn_ends.size(), " turn ends, limit ", kMaxEnds));
  }
  for (const uint32_t end : request.turn_ends) {
    if (end >= 1 && end <= request.tokens.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("reserve: a turn end at token ", end,
                                                   ", turns end in 1..", request.tokens.size()));
  }
  return absl::OkStatus();
}

// How many snapshots a chain may have at positions that are only likely to be asked for: together
// they take an eighth of what its keys and values take.
uint32_t WorthwhileSnapshots(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                             size_t tokens) {
  uint64_t state_bytes = 0, token_bytes = 0;
  for (const uint32_t g : groups) {
    const block::LayerGroup& group = space.identity.groups[g];
    if (space.IsState(g)) {
      state_bytes += group.state_bytes;
    } else {
      token_bytes += group.layers.size() * block::TokenBytesPerLayer(group, 0);
    }
  }
  if (state_bytes == 0 || token_bytes == 0) return block::kMaxSnapshots;
  return static_cast<uint32_t>(
      std::min<uint64_t>(block::kMaxSnapshots, tokens * token_bytes / 8 / state_bytes));
}

uint32_t AdvisedSteps(const Context& context, FormatAdvice& advice) {
  double used = 0;
  if (advice.rules().coarser_above > 0) {
    const ram::ArenaStats stats = context.arena->stats();
    used = static_cast<double>(stats.extent_bytes) /
           static_cast<double>(std::max<uint64_t>(stats.capacity_bytes, 1));
  }
  return advice.Steps(used);
}

void CountAdvised(const block::ReservePlan& plan, const std::vector<uint64_t>& writable,
                  Counters* counters) {
  uint64_t coarser = 0;
  for (const block::BlockPlan& block : plan.blocks) {
    if (block.state == block::BlockState::kPresent) continue;
    for (size_t group = 0; group < block.rungs.size(); ++group) {
      const uint64_t mask = writable.empty() ? 1 : writable[group];
      coarser += block.rungs[group] != block::kNoLimit &&
                 block.rungs[group] > static_cast<uint32_t>(std::countr_zero(mask));
    }
  }
  if (coarser > 0) counters->Add("advice.coarser_pages", coarser);
}

}  // namespace

absl::StatusOr<block::ReservePlan> Reserve(Context& context, Tables& tables, Room& room,
                                           block::SessionId id, const ReserveRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, tables.sessions.Find(id, "reserve"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, tables.spaces.Find(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.writable));
  auto reservation = std::make_shared<Reservation>();
  reservation->session = session;
  reservation->space = space;
  reservation->groups = request.groups;
  if (request.groups.empty()) {
    for (uint32_t g = 0; g < space->identity.groups.size(); ++g) reservation->groups.push_back(g);
  }
  tables.sessions.EndIdleReservations();
  reservation->used_us = context.Now();
  reservation->announced =
      tables.sessions.ChargeAnnounced(session, request.tokens.size() * sizeof(block::Token));
  if (reservation->announced == nullptr) {
    context.counters.Add("refused.announced");
    return TooManyAnnounced(context, tables.sessions, *session, request.tokens.size());
  }
  reservation->tokens = request.tokens;
  reservation->content = request.content;
  PREFIXD_RETURN_IF_ERROR(CheckTurnEnds(request));
  const index::SnapshotWish wish{
      .turn_ends = request.turn_ends,
      .max_snapshots = WorthwhileSnapshots(*space, reservation->groups, request.tokens.size())};
  const uint64_t in_index = index::PrefixIndex::ReservedBytes(request.tokens.size());
  room.FitIndex({.bytes = in_index, .table_bytes = in_index});
  PREFIXD_ASSIGN_OR_RETURN(reservation->reserved,
                           context.index->Reserve(request.space, {request.tokens, request.content},
                                                  {.groups = request.groups,
                                                   .rungs = request.writable,
                                                   .coarser = AdvisedSteps(context, tables.advice)},
                                                  id, wish));
  block::ReservePlan plan = reservation->reserved.plan;
  CountAdvised(plan, request.writable, &context.counters);
  if (request.seeds) AddSeeds(*reservation, &plan);
  PREFIXD_RETURN_IF_ERROR(tables.sessions.AddReservation(std::move(reservation)));
  return plan;
}

absl::Status Abandon(Context& context, Sessions& sessions, block::SessionId session,
                     block::ReservationId id) {
  PREFIXD_RETURN_IF_ERROR(sessions.FindReservation(session, id).status());
  sessions.DropReservation(id);
  context.counters.Add("reservations.abandoned");
  return absl::OkStatus();
}

}  // namespace prefixd::cache::verbs
