#include "daemon/prefix_cache_service.h"

#include "absl/strings/escaping.h"
#include "spdlog/spdlog.h"

#include "base/status.h"
#include "base/utf8.h"
#include "block/space_identity.h"
#include "daemon/call.h"
#include "daemon/fetch_stream.h"
#include "daemon/put_stream.h"
#include "daemon/request_log.h"
#include "daemon/unix_listener.h"
#include "wire/answer.h"
#include "wire/identity.h"
#include "wire/limits.h"
#include "wire/pages.h"
#include "wire/request.h"
#include "wire/sequence.h"

namespace prefixd::daemon {
namespace {

// Tries every one if all are valid. Returns the first error.
absl::Status ReleaseAll(cache::Cache* cache, block::SessionId session,
                        const wire::Releases& releases) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<cache::Released> read, wire::FromProto(releases));
  absl::Status first;
  for (const cache::Released& one : read) first.Update(cache->Release(session, one));
  return first;
}

uint64_t MicrosSince(std::chrono::steady_clock::time_point start) {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
}

bool WaitsForPending(const v1::AcquireRequest& request) {
  for (const v1::AcquireRequest::Item& item : request.items()) {
    if (item.wait_pending_ms() > 0) return true;
  }
  return false;
}

constexpr int kFewPages = 16;

int StagedPages(const v1::CommitRequest& request) {
  int pages = 0;
  for (const v1::StagedPages& staged : request.staged()) pages += staged.offset_size();
  return pages;
}

void WriteAcquired(const cache::Acquired& acquired, v1::Answer* answer) {
  wire::ToProto(acquired.lease, acquired.match, acquired.pages, answer);
  if (!acquired.table.groups.empty()) wire::ToProto(acquired.table, answer->mutable_table());
}

cache::Patience PatienceOf(HandOutCall* call) {
  return {DeadlineOf(call->context(), kMaxWait), call->gave_up()};
}

std::string NoteOfTrace(const Caller& caller) {
  return caller.context == nullptr ? "" : TraceIdNote(*caller.context);
}

absl::Status EndOfAcquire(const Caller& caller, uint64_t epoch, v1::AcquireReply* reply) {
  if (caller.context != nullptr && caller.context->IsCancelled())
    return absl::CancelledError("acquire: the worker stopped waiting");
  reply->set_epoch(epoch);
  return absl::OkStatus();
}

void LogNotShared(block::SessionName session, const block::NotShared& note) {
  if (note.reason.empty()) {
    spdlog::info("shared session={:016x} model=\"{}\"", session.value,
                 absl::CHexEscape(note.model));
  } else {
    spdlog::warn("not shared session={:016x} model=\"{}\" why=\"{}\"", session.value,
                 absl::CHexEscape(note.model), absl::CHexEscape(note.reason));
  }
}

}  // namespace

Sessions::Reactor* PrefixCacheService::AttachIn(std::shared_ptr<Gate::Seat> seat, Context* context,
                                                const Message* request) {
  return sessions_->Attach(*request, context->peer(), std::move(seat), gate_->has_tenants());
}

PrefixCacheService::Reactor* PrefixCacheService::OpenSpace(Context* context, const Message* request,
                                                           Message* reply) {
  return dispatch_->Serve<v1::OpenSpaceRequest, v1::OpenSpaceReply>(
      context, {"rpc.open_space"}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] {
          const absl::Status status = DoOpenSpace(*call->request(), call->context(), call->reply());
          NoteOpening(*call->request(), status);
          return status;
        });
      });
}

absl::Status PrefixCacheService::DoOpenSpace(const v1::OpenSpaceRequest& request,
                                             const Context& context, v1::OpenSpaceReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(block::SpaceIdentity identity, wire::FromProto(request.identity()));
  PREFIXD_ASSIGN_OR_RETURN(identity.tenant, gate_->TenantOf(context, {request.session()}));
  PREFIXD_ASSIGN_OR_RETURN(cache::OpenedSpace opened,
                           cache_->OpenSpace({request.session()}, std::move(identity)));
  reply->set_epoch(cache_->epoch());
  reply->set_space(opened.space.value);
  reply->set_space_id(opened.id.data(), opened.id.size());
  reply->set_block_tokens(opened.block_tokens);
  reply->set_created(opened.created);
  reply->set_nearest_model(opened.nearest_model);
  for (std::string& field : opened.differing_fields) reply->add_differing_fields(std::move(field));
  return absl::OkStatus();
}

void PrefixCacheService::NoteOpening(const v1::OpenSpaceRequest& request,
                                     const absl::Status& status) {
  if (!status.ok() && !absl::IsInvalidArgument(status)) return;
  const std::string& model = request.identity().model();
  const block::NotShared note{
      .model = model.empty() ? "(unnamed)" : base::Utf8Prefix(model, block::kMaxModelBytes),
      .reason = base::Utf8Prefix(std::string(status.message()), wire::kMaxReasonBytes)};
  const block::SessionId session{request.session()};
  if (cache_->NoteRefused(session, note)) LogNotShared(cache_->NameOf(session), note);
}

PrefixCacheService::Reactor* PrefixCacheService::NotShared(Context* context, const Message* request,
                                                           Message* reply) {
  return dispatch_->Serve<v1::NotSharedRequest, v1::Ack>(
      context, {"rpc.not_shared"}, request, reply, [this](auto* call) {
        dispatch_->Now(call, [=, this] {
          call->reply()->set_epoch(cache_->epoch());
          return DoNotShared(*call->request());
        });
      });
}

absl::Status PrefixCacheService::DoNotShared(const v1::NotSharedRequest& request) {
  PREFIXD_ASSIGN_OR_RETURN(const block::NotShared note, wire::FromProto(request));
  PREFIXD_ASSIGN_OR_RETURN(const bool news, cache_->NoteNotShared({request.session()}, note));
  if (news) LogNotShared(cache_->NameOf({request.session()}), note);
  return absl::OkStatus();
}

PrefixCacheService::Reactor* PrefixCacheService::TellDevicePins(Context* context,
                                                                const Message* request,
                                                                Message* reply) {
  return dispatch_->Serve<v1::DevicePinsRequest, v1::Ack>(
      context, {"rpc.device_pins"}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] {
          call->reply()->set_epoch(cache_->epoch());
          return cache_->SetDevicePins({call->request()->session()}, call->request()->slabs());
        });
      });
}

PrefixCacheService::Reactor* PrefixCacheService::Match(Context* context, const Message* request,
                                                       Message* reply) {
  return dispatch_->Serve<v1::AcquireRequest, v1::AcquireReply>(
      context, {.name = "rpc.match", .has_tokens = true}, request, reply, [this](auto* call) {
        dispatch_->Now(call, [=, this] { return DoMatch(call->request(), call->reply()); });
      });
}

absl::Status PrefixCacheService::DoMatch(v1::AcquireRequest* request, v1::AcquireReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(const std::vector<cache::Request> items,
                           wire::TakeItems(request, dispatch_->token_limit().unfolded_bytes));
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    end = wire::EndOfSet(*request, begin);
    PREFIXD_ASSIGN_OR_RETURN(
        const std::vector<block::MatchAnswer> answers,
        cache_->MatchSet({request->session()}, std::span(items).subspan(begin, end - begin)));
    for (const block::MatchAnswer& match : answers) {
      wire::ToProto({}, match, {}, reply->add_answers());
    }
  }
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

PrefixCacheService::Reactor* PrefixCacheService::Acquire(Context* context, const Message* request,
                                                         Message* reply) {
  return dispatch_->Serve<v1::AcquireRequest, v1::AcquireReply>(
      context, {.name = "rpc.acquire", .has_tokens = true}, request, reply, [this](auto* call) {
        const auto items = std::make_shared<Items>();
        const auto answer = [=, this] {
          return AnswerItems(*call->request(), *items, PatienceOf(call), call->caller(),
                             call->reply());
        };
        const auto bring = [=, this] {
          BringAll(call->caller(), *items);
          return answer();
        };
        const auto here = [=, this]() -> std::optional<absl::Status> {
          const absl::Status taken = TakeAcquire(call->request(), items.get());
          if (!taken.ok()) return taken;
          return AnswerHere(*call->request(), *items, PatienceOf(call), call->caller(),
                            call->reply());
        };
        if (!WaitsForPending(*call->request())) {
          return dispatch_->QuickOrPending(call, here, bring, answer);
        }
        dispatch_->Pending(call, [=] {
          const std::optional<absl::Status> status = here();
          return status.has_value() ? *status : bring();
        });
      });
}

absl::Status PrefixCacheService::DoAcquire(v1::AcquireRequest* request,
                                           const cache::Patience& patience, const Caller& caller,
                                           v1::AcquireReply* reply) {
  Items items;
  PREFIXD_RETURN_IF_ERROR(TakeAcquire(request, &items));
  if (const auto status = AnswerHere(*request, items, patience, caller, reply)) return *status;
  BringAll(caller, items);
  return AnswerItems(*request, items, patience, caller, reply);
}

absl::Status PrefixCacheService::TakeAcquire(v1::AcquireRequest* request, Items* items) {
  PREFIXD_ASSIGN_OR_RETURN(*items,
                           wire::TakeItems(request, dispatch_->token_limit().unfolded_bytes));
  return ReleaseAll(cache_, {request->session()}, request->release());
}

std::optional<absl::Status> PrefixCacheService::AnswerHere(const v1::AcquireRequest& request,
                                                           Items& items,
                                                           const cache::Patience& patience,
                                                           const Caller& caller,
                                                           v1::AcquireReply* reply) {
  if (!cache_->has_remote() || items.empty())
    return AnswerItems(request, items, patience, caller, reply);
  if (items.size() > 1) return std::nullopt;
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::optional<cache::Acquired>> acquired =
      cache_->AcquireHere(caller.session(), items.front(), patience);
  if (!acquired.ok()) return acquired.status();
  if (!acquired->has_value()) return std::nullopt;
  AnswerSet(request, 0, items, {&**acquired, 1}, start, caller, reply);
  return EndOfAcquire(caller, cache_->epoch(), reply);
}

// A store that does not answer is a miss: the local answer stands.
void PrefixCacheService::BringAll(const Caller& caller, Items& items) {
  for (cache::Request& item : items) {
    const auto start = std::chrono::steady_clock::now();
    cache_->Bring(caller.session(), item).IgnoreError();
    item.remote_us = MicrosSince(start);
    if (caller.trace != nullptr)
      caller.trace->Phase("prefixd.remote", start, std::chrono::steady_clock::now());
  }
}

void PrefixCacheService::AnswerSet(const v1::AcquireRequest& request, size_t begin, Items& items,
                                   std::span<const cache::Acquired> set, TraceTime start,
                                   const Caller& caller, v1::AcquireReply* reply) {
  const uint64_t micros = MicrosSince(start);
  if (caller.trace != nullptr)
    caller.trace->Acquired(std::span(items).subspan(begin, set.size()), set, start);
  for (const cache::Acquired& acquired : set) caller.hand_out->Add(acquired.lease);
  for (size_t i = 0; i < set.size(); ++i) {
    const v1::AcquireRequest::Item& from = request.items(static_cast<int>(begin + i));
    v1::Answer* answer = reply->add_answers();
    WriteAcquired(set[i], answer);
    LogAcquire(items[begin + i], set[i], micros, caller);
    if (!from.reserve()) continue;
    const auto asked = std::chrono::steady_clock::now();
    ReserveIn(from, std::move(items[begin + i]), caller.session(), answer);
    if (caller.trace != nullptr)
      caller.trace->Phase("prefixd.reserve", asked, std::chrono::steady_clock::now());
    caller.hand_out->Add(block::ReservationId{answer->reserved().reservation()});
  }
}

bool PrefixCacheService::CountIfSlow(uint64_t micros) {
  if (slow_.count() == 0 || micros <= static_cast<uint64_t>(slow_.count())) return false;
  cache_->Count("requests.slow");
  return true;
}

void PrefixCacheService::LogAcquire(const cache::Request& request, const cache::Acquired& acquired,
                                    uint64_t micros, const Caller& caller) {
  if (CountIfSlow(OwnMicros(request, acquired, micros))) {
    spdlog::warn("{}{}", SlowLine(request, acquired, micros), NoteOfTrace(caller));
  } else if (spdlog::should_log(spdlog::level::info)) {
    spdlog::info("{}", AcquireLine(request, acquired, micros));
  }
}

absl::Status PrefixCacheService::AnswerItems(const v1::AcquireRequest& request, Items& items,
                                             const cache::Patience& patience, const Caller& caller,
                                             v1::AcquireReply* reply) {
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    end = wire::EndOfSet(request, begin);
    const auto start = std::chrono::steady_clock::now();
    PREFIXD_ASSIGN_OR_RETURN(
        const std::vector<cache::Acquired> set,
        AcquireItems(caller.session(), std::span(items).subspan(begin, end - begin), patience));
    AnswerSet(request, begin, items, set, start, caller, reply);
  }
  return EndOfAcquire(caller, cache_->epoch(), reply);
}

absl::StatusOr<std::vector<cache::Acquired>> PrefixCacheService::AcquireItems(
    block::SessionId session, std::span<const cache::Request> items,
    const cache::Patience& patience) {
  if (items.size() > 1) return cache_->AcquireSet(session, items, patience);
  std::vector<cache::Acquired> alone;
  PREFIXD_ASSIGN_OR_RETURN(alone.emplace_back(), cache_->Acquire(session, items.front(), patience));
  return alone;
}

void PrefixCacheService::ReserveIn(const v1::AcquireRequest::Item& from, cache::Request item,
                                   block::SessionId session, v1::Answer* answer) {
  absl::StatusOr<block::ReservePlan> plan =
      absl::UnavailableError("reserve: the daemon is stopping");
  if (!sessions_->draining())
    plan = cache_->Reserve(session, wire::ReserveOf(from, std::move(item)));
  if (!plan.ok()) return answer->set_reserve_error(std::string(plan.status().message()));
  wire::ToProto(*plan, answer->mutable_reserved());
  answer->mutable_reserved()->set_epoch(cache_->epoch());
}

PrefixCacheService::Reactor* PrefixCacheService::Prefetch(Context* context, const Message* request,
                                                          Message* reply) {
  return dispatch_->Serve<v1::AcquireRequest, v1::PrefetchReply>(
      context, {.name = "rpc.prefetch", .has_tokens = true}, request, reply, [this](auto* call) {
        const bool bring = cache_->has_remote();
        const auto work = [=, this] {
          return DoPrefetch(call->request(), bring, call, call->reply());
        };
        bring ? dispatch_->Waiting(call, work) : dispatch_->Quick(call, work);
      });
}

absl::Status PrefixCacheService::DoPrefetch(v1::AcquireRequest* request, bool bring,
                                            HandOutCall* call, v1::PrefetchReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(std::vector<cache::Request> items,
                           wire::TakeItems(request, dispatch_->token_limit().unfolded_bytes));
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    end = wire::EndOfSet(*request, begin);
    if (end - begin == 1) continue;
    const std::span<cache::Request> set = std::span(items).subspan(begin, end - begin);
    PREFIXD_ASSIGN_OR_RETURN(const std::vector<block::MatchAnswer> answers,
                             cache_->MatchSet({request->session()}, set));
    for (cache::Request& item : set) item.max_tokens = answers.front().restorable_tokens;
  }
  if (bring) BringAll(call->caller(), items);
  for (const cache::Request& item : items) {
    PREFIXD_ASSIGN_OR_RETURN(const cache::Prefetched hint,
                             cache_->Prefetch({request->session()}, item));
    v1::PrefetchReply::Hint* to = reply->add_hints();
    to->set_restorable_tokens(hint.restorable_tokens);
    to->set_tokens(hint.tokens);
    to->set_bytes(hint.bytes);
  }
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

PrefixCacheService::Reactor* PrefixCacheService::Release(Context* context, const Message* request,
                                                         Message* reply) {
  return dispatch_->Serve<v1::ReleaseRequest, v1::Ack>(
      context, {"rpc.release"}, request, reply, [this](auto* call) {
        dispatch_->Now(call, [=, this] { return DoRelease(*call->request(), call->reply()); });
      });
}

absl::Status PrefixCacheService::DoRelease(const v1::ReleaseRequest& request, v1::Ack* reply) {
  reply->set_epoch(cache_->epoch());
  return ReleaseAll(cache_, {request.session()}, request.release());
}

PrefixCacheService::Reactor* PrefixCacheService::Reserve(Context* context, const Message* request,
                                                         Message* reply) {
  return dispatch_->Serve<v1::ReserveRequest, v1::ReserveReply>(
      context, {.name = "rpc.reserve", .has_tokens = true}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] {
          return DoReserve(*call->request(), call->hand_out(), call->reply());
        });
      });
}

absl::Status PrefixCacheService::DoReserve(const v1::ReserveRequest& request, HandOut* hand_out,
                                           v1::ReserveReply* reply) {
  if (sessions_->draining()) return absl::UnavailableError("reserve: the daemon is stopping");
  PREFIXD_ASSIGN_OR_RETURN(const cache::ReserveRequest reserve, wire::FromProto(request));
  PREFIXD_ASSIGN_OR_RETURN(const block::ReservePlan plan,
                           cache_->Reserve({request.session()}, reserve));
  hand_out->Add(plan.reservation);
  wire::ToProto(plan, reply);
  reply->set_epoch(cache_->epoch());
  return absl::OkStatus();
}

// A commit of more than a few staged pages copies megabytes, and one to SSD waits for the disk:
// neither runs on a callback thread.
PrefixCacheService::Reactor* PrefixCacheService::Commit(Context* context, const Message* request,
                                                        Message* reply) {
  return dispatch_->Serve<v1::CommitRequest, v1::CommitReply>(
      context, {"rpc.commit"}, request, reply, [this](auto* call) {
        const v1::CommitRequest& wanted = *call->request();
        const auto work = [=, this, running = dispatch_->Running()] {
          return DoCommit(*call->request(), PatienceOf(call), call->caller(), call->reply());
        };
        const bool quick =
            StagedPages(wanted) <= kFewPages && wanted.durability() != v1::DURABILITY_SSD;
        if (!quick) return dispatch_->Waiting(call, work);
        dispatch_->Quick(call, work);
      });
}

absl::Status PrefixCacheService::DoCommit(const v1::CommitRequest& request,
                                          const cache::Patience& patience, const Caller& caller,
                                          v1::CommitReply* reply) {
  const auto start = std::chrono::steady_clock::now();
  PREFIXD_ASSIGN_OR_RETURN(const cache::CommitRequest commit, wire::FromProto(request));
  PREFIXD_ASSIGN_OR_RETURN(const block::CommitAnswer answer,
                           cache_->Commit({request.session()}, commit, patience));
  caller.hand_out->Add(answer.lease);
  if (caller.trace != nullptr) caller.trace->Committed(answer, start);
  wire::ToProto(answer, reply);
  reply->set_epoch(cache_->epoch());
  const uint64_t micros = MicrosSince(start);
  if (CountIfSlow(micros)) {
    spdlog::warn("slow: {}{}", CommitLine(commit, answer, cache_->GetHoldings(), micros),
                 NoteOfTrace(caller));
  } else if (spdlog::should_log(spdlog::level::info)) {
    spdlog::info("{}", CommitLine(commit, answer, cache_->GetHoldings(), micros));
  }
  return absl::OkStatus();
}

PrefixCacheService::Reactor* PrefixCacheService::Abandon(Context* context, const Message* request,
                                                         Message* reply) {
  return dispatch_->Serve<v1::AbandonRequest, v1::Ack>(
      context, {"rpc.abandon"}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] { return DoAbandon(*call->request(), call->reply()); });
      });
}

absl::Status PrefixCacheService::DoAbandon(const v1::AbandonRequest& request, v1::Ack* reply) {
  reply->set_epoch(cache_->epoch());
  return cache_->Abandon({request.session()}, {request.reservation()});
}

// Loads what is on SSD, and so may wait for the disk.
PrefixCacheService::Reactor* PrefixCacheService::Pin(Context* context, const Message* request,
                                                     Message* reply) {
  return dispatch_->Serve<v1::PinRequest, v1::PinReply>(
      context, {.name = "rpc.pin", .has_tokens = true}, request, reply, [this](auto* call) {
        dispatch_->Waiting(call,
                           [=, this] { return DoPin(*call->request(), call, call->reply()); });
      });
}

absl::Status PrefixCacheService::DoPin(const v1::PinRequest& request, HandOutCall* call,
                                       v1::PinReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(const cache::Request sequence, wire::FromProto(request));
  const std::chrono::milliseconds ttl(request.ttl_ms());
  PREFIXD_ASSIGN_OR_RETURN(const cache::Pinned pinned,
                           cache_->Pin({request.session()}, sequence, ttl, PatienceOf(call)));
  if (pinned.made) call->hand_out()->Add(pinned.pin);
  reply->set_epoch(cache_->epoch());
  reply->set_pin(pinned.pin.value);
  reply->set_pinned_tokens(pinned.tokens);
  reply->set_bytes(pinned.bytes);
  wire::ToProto({}, pinned.match, {}, reply->mutable_answer());
  return absl::OkStatus();
}

PrefixCacheService::Reactor* PrefixCacheService::Unpin(Context* context, const Message* request,
                                                       Message* reply) {
  return dispatch_->Serve<v1::UnpinRequest, v1::UnpinReply>(
      context, {.name = "rpc.unpin", .has_tokens = true}, request, reply, [this](auto* call) {
        dispatch_->Quick(call, [=, this] { return DoUnpin(*call->request(), call->reply()); });
      });
}

absl::Status PrefixCacheService::DoUnpin(const v1::UnpinRequest& request, v1::UnpinReply* reply) {
  absl::StatusOr<uint64_t> bytes;
  if (request.pin() != 0) {
    bytes = cache_->Unpin(block::PinId{request.pin()});
  } else {
    PREFIXD_ASSIGN_OR_RETURN(const cache::Request sequence, wire::FromProto(request.sequence()));
    bytes = cache_->Unpin({request.session()}, sequence);
  }
  PREFIXD_RETURN_IF_ERROR(bytes.status());
  reply->set_epoch(cache_->epoch());
  reply->set_bytes(*bytes);
  return absl::OkStatus();
}

grpc::ServerReadReactor<grpc::ByteBuffer>* PrefixCacheService::PutIn(std::shared_ptr<void> charge,
                                                                     Context* context,
                                                                     Message* reply) {
  return StartPut(
      cache_, dispatch_, std::move(charge), context, reply,
      [this](const v1::CommitRequest& header, const cache::Patience& patience, const Caller& caller,
             v1::CommitReply* commit) { return DoCommit(header, patience, caller, commit); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* PrefixCacheService::FetchIn(
    std::shared_ptr<void> charge, Context* context, const Message* request) {
  return StartFetch(cache_, dispatch_, std::move(charge), context, *request);
}

}  // namespace prefixd::daemon
