#include "look_up.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "convert.h"
#include "format_index.h"
#include "wire/answer.h"
#include "wire/pages.h"
#include "wire/sequence.h"

namespace prefixd::client {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMostReleases = 256;  // that one call carries

bool IsSame(const block::SequenceView& a, const block::SequenceView& b) {
  return std::ranges::equal(a.tokens, b.tokens) && std::ranges::equal(a.content, b.content);
}

// Adds one item to a request. `like_the_last`: the item before it has the same tokens and content,
// which are then left out.
absl::Status AddItem(const SpaceState& space, const Question& question, bool like_the_last,
                     v1::AcquireRequest* request) {
  const BeginOptions& options = question.options;
  v1::AcquireRequest::Item* item = request->add_items();
  wire::ToProto(question.opened.space.handle,
                like_the_last ? block::SequenceView{} : question.sequence,
                item->mutable_sequence());
  item->set_max_tokens(options.max_cached_tokens == block::kNoLimit ? 0
                                                                    : options.max_cached_tokens);
  item->set_request_id(options.request_id);
  item->set_table(question.opened.attachment->arena() != nullptr);
  item->set_prefill_tokens_per_s(std::max(0.0, options.prefill_tokens_per_s));
  item->set_wait_pending_ms(
      static_cast<uint32_t>(std::clamp<int64_t>(options.wait_pending.count(), 0, 1 << 30)));
  for (const uint32_t end : options.turn_ends) item->add_turn_ends(end);
  for (const block::LayerGroup& group : space.groups()) {
    const uint64_t readable = RungsOf(group, options.readable);
    if (readable == 0 && group.kind != block::LayerKind::kState) {
      return absl::InvalidArgumentError(absl::StrCat("begin: readable names none of the ",
                                                     group.ladder.size(), " formats of layer ",
                                                     group.layers.front()));
    }
    item->add_readable(readable);
  }
  item->set_reserve(options.announce);
  if (!options.announce) return absl::OkStatus();
  const std::vector<uint64_t> writable = WritableRungs(space, options);
  item->mutable_writable()->Assign(writable.begin(), writable.end());
  item->set_seeds(question.opened.attachment->staging() == nullptr);
  return absl::OkStatus();
}

absl::StatusOr<v1::AcquireRequest> MakeRequest(const SpaceState& space, const Question& question) {
  v1::AcquireRequest request;
  request.set_session(question.opened.space.session.id);
  PREFIXD_RETURN_IF_ERROR(AddItem(space, question, /*like_the_last=*/false, &request));
  return request;
}

// Returns the pages of a lease, [group]. Internal if the reply does not fit the request.
absl::StatusOr<std::vector<std::vector<ExpectedPage>>> PagesOf(
    const std::vector<block::LeasedPage>& pages, const SpaceState& space, const LoadPlan& plan) {
  const std::vector<block::LayerGroup>& groups = space.groups();
  std::vector<std::vector<ExpectedPage>> expected(groups.size());
  std::vector<size_t> blocks(groups.size(), 0);  // seen so far, [group]
  for (const block::LeasedPage& page : pages) {
    const bool known = page.group < groups.size();
    const bool state = known && space.IsState(page.group);
    if (!known || (!state && !page.absent() && page.rung >= groups[page.group].ladder.size())) {
      return absl::InternalError(
          absl::StrCat("begin: the daemon leased group ", page.group, ", rung ", page.rung));
    }
    size_t& next = blocks[page.group];
    if (!state && page.first_token != next * plan.block_tokens) {
      return absl::InternalError("begin: the daemon leased pages out of order");
    }
    ++next;
    const uint32_t end = page.first_token + page.tokens;
    if (!page.absent()) {
      expected[page.group].push_back(
          {.first_token = page.first_token, .tokens = page.tokens, .rung = page.rung});
    } else if (space.Reads(page.group, plan.tokens, page.first_token, end)) {
      return absl::InternalError("begin: the daemon leased a window without a page of it");
    }
  }
  const size_t all = (plan.tokens + plan.block_tokens - 1) / plan.block_tokens;
  for (uint32_t group = 0; group < groups.size(); ++group) {
    if (blocks[group] != (space.IsState(group) ? 1 : all)) {
      return absl::InternalError(absl::StrCat("begin: the daemon leased ", blocks[group],
                                              " pages of a group, ", all, " expected"));
    }
  }
  return expected;
}

// Starts the loading of a lease's pages: fills `pages` and `in_place` of `found`. Moves the columns
// out of `answer`.
absl::Status StartLoading(Core& core, const std::shared_ptr<SpaceState>& space,
                          const OpenedUnder& opened, const LoadPlan& plan, v1::Answer* answer,
                          LookUpAnswer* found) {
  found->in_place = opened.attachment->arena() != nullptr;
  if (found->in_place) {
    PREFIXD_ASSIGN_OR_RETURN(
        const std::shared_ptr<LeasedPages> leased,
        LeasedPages::Make(opened.attachment, space, plan, answer->mutable_pages()));
    core.board().Put(leased);
    found->pages = leased;
    return absl::OkStatus();
  }
  PREFIXD_ASSIGN_OR_RETURN(const wire::Answer read,
                           wire::FromProto(*answer, plan.block_tokens, space->kinds()));
  PREFIXD_ASSIGN_OR_RETURN(auto pages, PagesOf(read.pages, *space, plan));
  auto load = std::make_shared<FetchedPages>(core.connection(), space, plan, std::move(pages));
  core.StartLoad(load);
  found->pages = std::move(load);
  return absl::OkStatus();
}

void GiveBack(Core& core, const Session& session, block::LeaseId lease) {
  v1::Released released;
  released.set_lease(lease.value);
  core.release_sender().Release(session, std::move(released));
}

absl::Status TakeLease(Core& core, const std::shared_ptr<SpaceState>& space,
                       const OpenedUnder& opened, uint32_t most, LoadPlan plan, v1::Answer* answer,
                       LookUpAnswer* found) {
  // Translates the answer without the columns, which are moved, not copied.
  google::protobuf::RepeatedPtrField<v1::GroupPages> pages;
  if (answer->has_table()) {
    PREFIXD_RETURN_IF_ERROR(wire::ExpandTable(
        answer->table(), {.block_tokens = plan.block_tokens, .tokens = answer->restorable_tokens()},
        answer->mutable_pages()));
    answer->clear_table();
  }
  pages.Swap(answer->mutable_pages());
  PREFIXD_ASSIGN_OR_RETURN(wire::Answer read,
                           wire::FromProto(*answer, plan.block_tokens, space->kinds()));
  pages.Swap(answer->mutable_pages());
  found->match = std::move(read.match);
  plan.tokens = found->match.restorable_tokens;
  if (plan.tokens == 0) return absl::OkStatus();
  if (plan.tokens > most) {
    return absl::InternalError(absl::StrCat("begin: the daemon restores ", plan.tokens,
                                            " tokens, asked for at most ", most));
  }
  plan.lease = found->lease = read.lease;
  return StartLoading(core, space, opened, plan, answer, found);
}

// Gives back what an answer holds, which nobody is going to use: the reservation and the lease.
void Refuse(Core& core, const Session& session, const v1::Answer& answer) {
  const block::ReservationId reservation{answer.reserved().reservation()};
  if (reservation) core.release_sender().Abandon(session, reservation);
  if (answer.lease() != 0) GiveBack(core, session, {answer.lease()});
}

// Translates an answer and starts the loading. `most`: tokens that may be restored at most.
absl::StatusOr<LookUpAnswer> Take(Core& core, const std::shared_ptr<SpaceState>& space,
                                  const OpenedUnder& opened, uint32_t most, const LoadPlan& plan,
                                  v1::Answer* answer) {
  LookUpAnswer found;
  absl::Status status = TakeLease(core, space, opened, most, plan, answer, &found);
  if (status.ok() && answer->reserved().reservation() != 0) {
    const auto groups = static_cast<uint32_t>(space->groups().size());
    absl::StatusOr<block::ReservePlan> announced = wire::FromProto(answer->reserved(), groups);
    status = announced.status();
    if (status.ok()) found.announced = *std::move(announced);
  }
  if (status.ok()) return found;
  Refuse(core, opened.space.session, *answer);
  return status;
}

absl::Status CheckAnswers(const v1::AcquireReply& reply, size_t items) {
  if (static_cast<size_t>(reply.answers_size()) == items) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("begin: the daemon gave ", reply.answers_size(),
                                          " answers to ", items, items == 1 ? " item" : " items"));
}

LoadPlan PlanOf(const OpenedUnder& opened, base::Deadline asked, const BeginOptions& options) {
  return {.session = opened.space.session,
          .lease = {},
          .block_tokens = opened.space.block_tokens,
          .tokens = 0,
          .asked = asked,
          .deadline = asked + options.load_deadline};
}

uint32_t MostTokens(const Question& question) {
  return std::min(static_cast<uint32_t>(question.sequence.tokens.size()),
                  question.options.max_cached_tokens);
}

// What waits for another worker would keep the session's other calls off the channel.
wire::DirectVerb VerbOf(const v1::AcquireRequest& request) {
  const bool waits = std::ranges::any_of(
      request.items(), [](const auto& item) { return item.wait_pending_ms() > 0; });
  return waits ? wire::DirectVerb::kNone : wire::DirectVerb::kAcquire;
}

// Makes the call, which carries releases that wait.
absl::StatusOr<v1::AcquireReply> Ask(Core& core, const Session& session, v1::AcquireRequest request,
                                     base::Deadline deadline) {
  for (v1::Released& released : core.release_sender().Take(session, kMostReleases)) {
    *request.add_release() = std::move(released);
  }
  absl::StatusOr<v1::AcquireReply> reply = core.connection()->Call(
      &Connection::Stub::Acquire, session, request, deadline, VerbOf(request));
  // The releases may not have arrived. If the session is over, they are dropped.
  if (absl::IsDeadlineExceeded(reply.status()) || absl::IsUnavailable(reply.status())) {
    for (v1::Released& released : *request.mutable_release()) {
      core.release_sender().ReleaseAgain(session, std::move(released));
    }
  }
  return reply;
}

}  // namespace

std::vector<uint64_t> WritableRungs(const SpaceState& space, const BeginOptions& options) {
  std::vector<uint64_t> writable;
  const uint64_t written = MaskOf(options.write_format) | options.coarser_formats |
                           (options.head_tokens > 0 ? MaskOf(options.head_format) : 0);
  for (const block::LayerGroup& group : space.groups()) {
    writable.push_back(RungsOf(group, options.readable | written));
  }
  return writable;
}

absl::StatusOr<block::MatchAnswer> Match(Core& core, const SpaceState& space,
                                         const Question& question) {
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireRequest request, MakeRequest(space, question));
  request.mutable_items(0)->set_reserve(false);
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::AcquireReply reply,
      core.connection()->Call(&Connection::Stub::Match, question.opened.space.session, request,
                              steady_clock::now() + question.options.deadline,
                              wire::DirectVerb::kMatch));
  if (reply.answers_size() != 1) return absl::InternalError("match: not one answer");
  PREFIXD_ASSIGN_OR_RETURN(
      const wire::Answer answer,
      wire::FromProto(reply.answers(0), question.opened.space.block_tokens, space.kinds()));
  return answer.match;
}

absl::StatusOr<uint32_t> Prefetch(Core& core, const SpaceState& space, const Question& question) {
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireRequest request, MakeRequest(space, question));
  request.mutable_items(0)->set_reserve(false);
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::PrefetchReply reply,
      core.connection()->Call(&Connection::Stub::Prefetch, question.opened.space.session, request,
                              steady_clock::now() + question.options.deadline));
  if (reply.hints_size() != 1) return absl::InternalError("prefetch: not one answer");
  return reply.hints(0).tokens();
}

absl::StatusOr<PinInfo> Pin(Core& core, const SpaceState& space, const Question& question,
                            std::chrono::milliseconds ttl) {
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireRequest asked, MakeRequest(space, question));
  v1::PinRequest request;
  request.set_session(asked.session());
  request.mutable_sequence()->Swap(asked.mutable_items(0)->mutable_sequence());
  request.set_ttl_ms(static_cast<uint64_t>(std::max<int64_t>(0, ttl.count())));
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::PinReply reply,
      core.connection()->Call(&Connection::Stub::Pin, question.opened.space.session, request,
                              steady_clock::now() + question.options.load_deadline));
  return PinInfo{.pin = reply.pin(), .tokens = reply.pinned_tokens(), .bytes = reply.bytes()};
}

absl::StatusOr<uint64_t> Unpin(Core& core, const Session& session, uint64_t pin,
                               base::Deadline deadline) {
  v1::UnpinRequest request;
  request.set_session(session.id);
  request.set_pin(pin);
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::UnpinReply reply,
      core.connection()->Call(&Connection::Stub::Unpin, session, request, deadline));
  return reply.bytes();
}

absl::StatusOr<LookUpAnswer> Acquire(Core& core, const std::shared_ptr<SpaceState>& space,
                                     const Question& question) {
  const base::Deadline asked = steady_clock::now();
  const Session& session = question.opened.space.session;
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireRequest request, MakeRequest(*space, question));
  const LeaseEvents::Asking asking(&core.board());
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireReply reply, Ask(core, session, std::move(request),
                                                       asked + question.options.deadline));
  PREFIXD_RETURN_IF_ERROR(CheckAnswers(reply, 1));
  return Take(core, space, question.opened, MostTokens(question),
              PlanOf(question.opened, asked, question.options), reply.mutable_answers(0));
}

absl::StatusOr<std::vector<LookUpAnswer>> AcquireSet(Core& core,
                                                     std::span<const SetQuestion> members,
                                                     base::Deadline deadline) {
  const base::Deadline asked = steady_clock::now();
  const Session& session = members.front().question.opened.space.session;
  v1::AcquireRequest request;
  request.set_session(session.id);
  for (size_t i = 0; i < members.size(); ++i) {
    const block::SequenceView& sequence = members[i].question.sequence;
    const bool like_the_last = i > 0 && IsSame(members[i - 1].question.sequence, sequence);
    PREFIXD_RETURN_IF_ERROR(
        AddItem(*members[i].space, members[i].question, like_the_last, &request));
    request.mutable_items(static_cast<int>(i))->set_set(1);
  }
  const LeaseEvents::Asking asking(&core.board());
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireReply reply,
                           Ask(core, session, std::move(request), deadline));
  absl::Status status = CheckAnswers(reply, members.size());
  std::vector<LookUpAnswer> found;
  for (int i = 0; i < reply.answers_size(); ++i) {
    v1::Answer* const answer = reply.mutable_answers(i);
    if (status.ok() && answer->restorable_tokens() != reply.answers(0).restorable_tokens()) {
      status = absl::InternalError(absl::StrCat("begin: the daemon gave a set answers of ",
                                                reply.answers(0).restorable_tokens(), " and ",
                                                answer->restorable_tokens(), " tokens"));
    }
    if (!status.ok()) {
      Refuse(core, session, *answer);
      continue;
    }
    const SetQuestion& member = members[static_cast<size_t>(i)];
    const Question& question = member.question;
    absl::StatusOr<LookUpAnswer> one =
        Take(core, member.space, question.opened, MostTokens(question),
             PlanOf(question.opened, asked, question.options), answer);
    status.Update(one.status());
    if (one.ok()) found.push_back(*std::move(one));
  }
  if (status.ok()) return found;
  for (const LookUpAnswer& one : found) {  // all or nothing
    if (one.pages) one.pages->Cancel();
    if (one.lease) GiveBack(core, session, one.lease);
    if (one.announced) core.release_sender().Abandon(session, one.announced->reservation);
  }
  return status;
}

}  // namespace prefixd::client
