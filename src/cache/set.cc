// Several requests with one length: a model's ranks, a draft beside its target.
#include <utility>

#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {
namespace {

absl::StatusOr<std::vector<Core::Member>> MembersOf(const Core& core, const Session& session,
                                                    std::span<const Request> requests,
                                                    uint32_t slot) {
  std::vector<Core::Member> members;
  for (const Request& request : requests) {
    if (request.continues && requests.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat("acquire: an item of a set continues lease ",
                                                     request.continues.value,
                                                     "; sets send every token"));
    }
    PREFIXD_ASSIGN_OR_RETURN(SpacePtr space, core.FindSpace(session, request.space));
    PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
    PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
    members.push_back({.request = &request,
                       .space = std::move(space),
                       .item = {.space = request.space,
                                .request = {request.tokens, request.content},
                                .options = OptionsOf(request, slot)}});
  }
  return members;
}

std::vector<index::SetItem> ItemsOf(std::span<const Core::Member> members) {
  std::vector<index::SetItem> items;
  for (const Core::Member& member : members) items.push_back(member.item);
  return items;
}

}  // namespace

absl::StatusOr<std::vector<block::MatchAnswer>> Cache::MatchSet(block::SessionId id,
                                                                std::span<const Request> requests) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "match"));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<Core::Member> members,
                           MembersOf(*core_, *session, requests, block::kNoSlot));
  core_->KeepLimits();
  std::vector<block::MatchAnswer> answers = core_->index->MatchSet(ItemsOf(members), id);
  for (block::MatchAnswer& answer : answers) {
    answer.load_us = core_->load_model.EstimateMicros(answer.ram_bytes, answer.ssd_bytes);
  }
  core_->counters.Add("matches", answers.size());
  return answers;
}

absl::StatusOr<std::vector<Acquired>> Cache::AcquireSet(block::SessionId id,
                                                        std::span<const Request> requests,
                                                        const Patience& patience) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "acquire"));
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<Core::Member> members,
                           MembersOf(*core_, *session, requests, session->slot_number()));
  core_->KeepLimits();
  Phases phases(core_.get());
  for (const Core::Member& member : members) {
    if (member.request->wait_pending.count() == 0) continue;
    WaitForAnnounced(core_.get(), *member.request, member.item.options, *session, patience);
    if (patience.gave_up()) return absl::CancelledError("acquire: the caller gave up");
  }
  phases.times.wait_us = phases.Next();
  std::vector<index::Acquired> held = core_->index->AcquireSet(ItemsOf(members), id);
  phases.times.match_us = phases.Next();
  if (!held.empty()) core_->StartAll(*session, members, patience, &held);
  phases.times.room_us = phases.Next();
  std::vector<Acquired> set;
  absl::Status failed;
  for (size_t i = 0; i < members.size(); ++i) {
    const block::LeaseId lease = held[i].lease;
    if (!failed.ok()) {
      if (lease) core_->index->Release(lease).IgnoreError();  // nobody else has the id
      continue;
    }
    absl::StatusOr<Acquired> acquired =
        core_->Answer(session, members[i].space, std::move(held[i]), *members[i].request, 0,
                      nullptr, std::nullopt);
    failed.Update(acquired.status());
    if (!acquired.ok()) continue;
    core_->Remember(*session, *members[i].space, *members[i].request, phases.times, &*acquired);
    set.push_back(*std::move(acquired));
  }
  if (failed.ok()) {
    core_->counters.Add("acquires.sets");
    return set;
  }
  for (const Acquired& acquired : set) {
    if (acquired.lease) Release(id, {.lease = acquired.lease}).IgnoreError();
  }
  core_->FreeTaken();
  return failed;
}

}  // namespace prefixd::cache
