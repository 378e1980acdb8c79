#include "daemon/admin_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/size.h"
#include "base/status.h"
#include "block/layer_group.h"
#include "daemon/call.h"
#include "daemon/request_log.h"
#include "wire/admin.h"
#include "wire/limits.h"

namespace prefixd::daemon {
namespace {

constexpr std::chrono::seconds kOthersPatience(2);
constexpr size_t kMostOthers = 32;  // in an answer

Dispatch::Verb People(const char* name) { return {.name = name, .of_people = true}; }

}  // namespace

// Walks the SSD tier's directory, and so may wait for the disk.
AdminService::Reactor* AdminService::GetStats(Context* context, const Message* request,
                                              Message* reply) {
  return dispatch_->Serve<v1::GetStatsRequest, v1::GetStatsReply>(
      context, People("rpc.get_stats"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          DoGetStats(call->reply());
          return absl::OkStatus();
        });
      });
}

void AdminService::WriteSums(v1::GetStatsReply* reply) const {
  DoGetStats(reply);
  reply->clear_spaces();
  reply->set_spaces_hidden(true);
}

void AdminService::DoGetStats(v1::GetStatsReply* reply) const {
  const block::Stats stats = cache_->GetStats();
  wire::ToProto(stats, reply);
  const cache::ArenaPlace place = cache_->arena();
  v1::GetStatsReply::Arena* arena = reply->mutable_arena();
  arena->set_shared(place.shared);
  arena->set_file_bytes(place.file_bytes);
  arena->set_adopted_pages(CounterOf(stats, kAdoptedPages));
  arena->set_path(place.path);
  arena->set_limited_to(place.limited_to.value_or(0));
  for (const block::NamedCount& share : cache_->RamShares()) {
    v1::Count* to = reply->add_ram_shares();
    to->set_name(share.name);
    to->set_value(share.value);
  }
}

AdminService::Reactor* AdminService::ListSpaces(Context* context, const Message* request,
                                                Message* reply) {
  return dispatch_->Serve<v1::ListSpacesRequest, v1::ListSpacesReply>(
      context, People("rpc.list_spaces"), request, reply, [this](auto* call) {
        const auto answer = [=, this] { return DoListSpaces(*call->request(), call->reply()); };
        // The call waits for the shared store, so it runs on a thread that no worker's call needs.
        if (!call->request()->explain_against().empty() && cache_->has_remote()) {
          return dispatch_->Admin(call, answer);
        }
        dispatch_->QuickAdmin(call, answer);
      });
}

void AdminService::AddOtherHosts(const block::SpaceIdentity& against, v1::ListSpacesReply* reply) {
  const absl::StatusOr<std::vector<cache::ToldSpace>> others =
      cache_->SpacesOfOthers(std::chrono::steady_clock::now() + kOthersPatience);
  if (!others.ok()) {
    reply->set_other_hosts_error(std::string(others.status().message()));
    return;
  }
  block::SpaceIdentity reference = against;
  reference.salt.clear();
  // Sorted by how many fields differ; equal ones keep their order, newest first.
  std::multimap<size_t, std::pair<const cache::ToldSpace*, std::vector<std::string>>> nearest;
  for (const cache::ToldSpace& told : *others) {
    std::vector<std::string> fields = block::DifferingFields(reference, told.identity);
    nearest.emplace(fields.size(), std::pair(&told, std::move(fields)));
    if (nearest.size() > kMostOthers) nearest.erase(std::prev(nearest.end()));
  }
  const int64_t now_us = base::SystemClock::Get().UnixMicros();
  for (auto& [count, other] : nearest) {
    v1::ListSpacesReply::ToldSpace* to = reply->add_other_hosts();
    wire::ToProto(other.first->identity, to);
    to->set_host(other.first->host);
    to->set_age_s(static_cast<double>(std::max<int64_t>(0, now_us - other.first->unix_us)) / 1e6);
    for (std::string& field : other.second) to->add_differing_fields(std::move(field));
  }
}

absl::Status AdminService::DoListSpaces(const v1::ListSpacesRequest& request,
                                        v1::ListSpacesReply* reply) {
  block::SpaceId against{};
  bool explain = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.explain_against(), &against, &explain));
  const std::vector<block::SpaceSummary> spaces = cache_->ListSpaces();
  const auto reference = std::find_if(spaces.begin(), spaces.end(),
                                      [&](const auto& space) { return space.id == against; });
  if (explain && reference == spaces.end()) {
    return absl::NotFoundError(absl::StrCat("list_spaces: no space ", base::ToHex(against)));
  }
  reply->set_epoch(cache_->epoch());
  for (const block::SpaceSummary& space : spaces) {
    v1::ListSpacesReply::Space* to = reply->add_spaces();
    wire::ToProto(space, to);
    if (!explain) continue;
    for (std::string& field : block::DifferingFields(reference->identity, space.identity)) {
      to->add_differing_fields(std::move(field));
    }
  }
  if (explain && cache_->has_remote()) AddOtherHosts(reference->identity, reply);
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::Clear(Context* context, const Message* request,
                                           Message* reply) {
  return dispatch_->Serve<v1::ClearRequest, v1::ClearReply>(
      context, People("rpc.clear"), request, reply, [this](auto* call) {
        dispatch_->Admin(call, [=, this] { return DoClear(*call->request(), call->reply()); });
      });
}

absl::Status AdminService::DoClear(const v1::ClearRequest& request, v1::ClearReply* reply) {
  block::SpaceId space{};
  bool given = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.space_id(), &space, &given));
  const block::SpaceId* const wanted = given ? &space : nullptr;
  reply->set_epoch(cache_->epoch());
  cache::Cache::Cleared cleared;
  if (request.purge()) {
    PREFIXD_ASSIGN_OR_RETURN(const cache::Cache::PurgeProgress step,
                             cache_->Purge(wanted, request.cursor()));
    reply->set_next(step.next);
    reply->set_passed_bytes(step.passed_bytes);
    reply->set_total_bytes(step.total_bytes);
    reply->set_removed_bytes(step.removed_bytes);
    reply->set_rewritten_bytes(step.rewritten_bytes);
    reply->set_leased_bytes(step.leased_bytes);
    cleared = step.cleared;
  } else {
    PREFIXD_ASSIGN_OR_RETURN(cleared, cache_->Clear(wanted));
  }
  reply->set_spaces(cleared.spaces);
  reply->set_bytes(cleared.bytes);
  reply->set_waiting_ssd_bytes(cleared.waiting_ssd_bytes);
  reply->set_border_waits(cleared.border_waits);
  reply->set_remote_waits(cleared.remote_waits);
  if (request.cursor() != 0) return absl::OkStatus();
  spdlog::info("{} space={} spaces={} bytes={}", request.purge() ? "purge" : "clear",
               given ? base::ToHex(space) : "all", cleared.spaces,
               base::FormatBytes(cleared.bytes));
  if (cleared.remote_waits)
    spdlog::warn("clear: the store that hosts share has not heard of it yet");
  if (cleared.border_waits) spdlog::warn("clear: the ssd tier's part of it is not on disk yet");
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::Flush(Context* context, const Message* request,
                                           Message* reply) {
  return dispatch_->Serve<v1::FlushRequest, v1::FlushReply>(
      context, People("rpc.flush"), request, reply, [this](auto* call) {
        dispatch_->Admin(call, [=, this] {
          return DoFlush({DeadlineOf(call->context(), kMaxAdmin), call->gave_up()}, call->reply());
        });
      });
}

absl::Status AdminService::DoFlush(const cache::Patience& patience, v1::FlushReply* reply) {
  const cache::FlushResult result = cache_->Flush(patience);
  reply->set_epoch(cache_->epoch());
  reply->set_flushed_bytes(result.flushed_bytes);
  reply->set_dirty_bytes(result.dirty_bytes);
  reply->set_remote_waits(result.remote_waits);
  spdlog::info("flush saved={} left={}", base::FormatBytes(result.flushed_bytes),
               base::FormatBytes(result.dirty_bytes));
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::Verify(Context* context, const Message* request,
                                            Message* reply) {
  return dispatch_->Serve<v1::VerifyRequest, v1::VerifyReply>(
      context, People("rpc.verify"), request, reply, [this](auto* call) {
        dispatch_->Admin(call, [=, this] {
          return DoVerify(*call->request(),
                          {DeadlineOf(call->context(), kMaxAdmin), call->gave_up()}, call->reply());
        });
      });
}

absl::Status AdminService::DoVerify(const v1::VerifyRequest& request,
                                    const cache::Patience& patience, v1::VerifyReply* reply) {
  const cache::VerifyProgress progress =
      cache_->Verify(request.cursor(), request.bytes_per_second(), patience);
  reply->set_epoch(cache_->epoch());
  reply->set_next(progress.next);
  reply->set_pages(progress.pages);
  reply->set_bytes(progress.bytes);
  reply->set_bad(progress.bad);
  reply->set_unreadable(progress.unreadable);
  reply->set_in_use(progress.in_use);
  reply->set_passed_bytes(progress.passed_bytes);
  reply->set_total_bytes(progress.total_bytes);
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::GetConfig(Context* context, const Message* request,
                                               Message* reply) {
  return dispatch_->Serve<v1::GetConfigRequest, v1::GetConfigReply>(
      context, People("rpc.get_config"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          WriteConfig(call->reply());
          return absl::OkStatus();
        });
      });
}

std::vector<Setting> AdminService::settings() const {
  const base::MutexLock lock(settings_mutex_);
  return settings_;
}

void AdminService::WriteConfig(v1::GetConfigReply* reply) const {
  reply->set_epoch(cache_->epoch());
  reply->set_version(version_);
  base::MutexLock lock(settings_mutex_);
  for (const Setting& setting : settings_) {
    v1::GetConfigReply::Setting* to = reply->add_settings();
    to->set_name(setting.name);
    to->set_value(setting.value);
    to->set_source(setting.source);
  }
  const std::pair<const char*, uint64_t> limits[] = {
      {"protocol", wire::kProtocol},
      {"tokens_per_request", wire::kMaxTokens},
      {"items_per_request", wire::kMaxItems},
      {"ends_per_request", wire::kMaxEnds},
      {"token_message_bytes", dispatch_->token_limit().bytes},
      {"message_bytes", wire::kMaxMessageBytes},
      {"piece_bytes", wire::kMaxPieceBytes},
      {"groups_per_space", block::kMaxGroups},
      {"formats_per_ladder", block::kMaxLadder},
      {"worker_name_bytes", wire::kMaxWorkerBytes},
      {"request_id_bytes", wire::kMaxRequestIdBytes},
      {"not_shared_models", cache::kMaxNotShared},
      {"not_shared_reason_bytes", wire::kMaxReasonBytes},
      {"unread_event_bytes", wire::kMaxUnreadEventBytes},
      {"arena_sessions", block::kArenaSlots},
      {"wait_seconds", kMaxWait.count()},
      {"stream_seconds", std::chrono::seconds(kMaxStream).count()},
      {"silent_stream_seconds",
       std::chrono::duration_cast<std::chrono::seconds>(dispatch_->patience().silence).count()},
      {"commit_wait_seconds", cache::kCommitPatience.count()},
      {"idle_reservation_seconds", std::chrono::seconds(cache::kIdleReservation).count()},
  };
  for (const auto& [name, value] : limits) {
    v1::GetConfigReply::Setting* to = reply->add_limits();
    to->set_name(name);
    to->set_value(std::to_string(value));
    to->set_source("default");
  }
}

AdminService::Reactor* AdminService::ListSessions(Context* context, const Message* request,
                                                  Message* reply) {
  return dispatch_->Serve<v1::ListSessionsRequest, v1::ListSessionsReply>(
      context, People("rpc.list_sessions"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          v1::ListSessionsReply* const reply = call->reply();
          reply->set_epoch(cache_->epoch());
          for (const block::SessionInfo& session : cache_->ListSessions())
            wire::ToProto(session, reply->add_sessions());
          return absl::OkStatus();
        });
      });
}

AdminService::Reactor* AdminService::ListLeases(Context* context, const Message* request,
                                                Message* reply) {
  return dispatch_->Serve<v1::ListLeasesRequest, v1::ListLeasesReply>(
      context, People("rpc.list_leases"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          v1::ListLeasesReply* const reply = call->reply();
          reply->set_epoch(cache_->epoch());
          for (const block::LeaseInfo& lease : cache_->ListLeases())
            wire::ToProto(lease, reply->add_leases());
          return absl::OkStatus();
        });
      });
}

// Waits until the files of dropped segments are removed.
AdminService::Reactor* AdminService::SetBudgets(Context* context, const Message* request,
                                                Message* reply) {
  return dispatch_->Serve<v1::SetBudgetsRequest, v1::SetBudgetsReply>(
      context, People("rpc.set_budgets"), request, reply, [this](auto* call) {
        dispatch_->Admin(call, [=, this] { return DoSetBudgets(*call->request(), call->reply()); });
      });
}

void AdminService::NoteBudget(const char* name, uint64_t bytes) {
  if (bytes == 0) return;
  base::MutexLock lock(settings_mutex_);
  for (Setting& setting : settings_) {
    if (setting.name != name) continue;
    setting.value = base::FormatExact(bytes);
    setting.source = "budget";
  }
}

absl::Status AdminService::DoSetBudgets(const v1::SetBudgetsRequest& request,
                                        v1::SetBudgetsReply* reply) {
  PREFIXD_ASSIGN_OR_RETURN(const block::BudgetState state,
                           cache_->SetBudgets(request.ram_bytes(), request.ssd_bytes()));
  reply->set_epoch(cache_->epoch());
  NoteBudget("ram", request.ram_bytes());
  NoteBudget("ssd", request.ssd_bytes());
  reply->set_ram_budget_bytes(state.ram_budget_bytes);
  reply->set_ram_used_bytes(state.ram_used_bytes);
  reply->set_ram_over_bytes(state.ram_over_bytes);
  reply->set_awaited_bytes(state.awaited_bytes);
  reply->set_ssd_budget_bytes(state.ssd_budget_bytes);
  reply->set_ssd_file_bytes(state.ssd_file_bytes);
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::SetSpaceLimits(Context* context, const Message* request,
                                                    Message* reply) {
  return dispatch_->Serve<v1::SetSpaceLimitsRequest, v1::SetSpaceLimitsReply>(
      context, People("rpc.set_space_limits"), request, reply, [this](auto* call) {
        dispatch_->Admin(call,
                         [=, this] { return DoSetSpaceLimits(*call->request(), call->reply()); });
      });
}

absl::Status AdminService::DoSetSpaceLimits(const v1::SetSpaceLimitsRequest& request,
                                            v1::SetSpaceLimitsReply* reply) {
  block::SpaceId space{};
  bool given = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.space_id(), &space, &given));
  if (!given) return absl::InvalidArgumentError("set_space_limits: space_id is missing");
  PREFIXD_ASSIGN_OR_RETURN(const bool remembered,
                           cache_->SetSpaceLimits(space, wire::FromProto(request.limits())));
  reply->set_epoch(cache_->epoch());
  reply->set_remembered(remembered);
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::ListPrefixes(Context* context, const Message* request,
                                                  Message* reply) {
  return dispatch_->Serve<v1::ListPrefixesRequest, v1::ListPrefixesReply>(
      context, People("rpc.list_prefixes"), request, reply, [this](auto* call) {
        dispatch_->Admin(call,
                         [=, this] { return DoListPrefixes(*call->request(), call->reply()); });
      });
}

absl::Status AdminService::DoListPrefixes(const v1::ListPrefixesRequest& request,
                                          v1::ListPrefixesReply* reply) const {
  constexpr uint32_t kUsual = 20, kMost = 1000;
  block::SpaceId space{};
  bool given = false;
  PREFIXD_RETURN_IF_ERROR(wire::ReadSpaceId(request.space_id(), &space, &given));
  if (request.most() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("list_prefixes: most is ", request.most(), ", the limit is ", kMost));
  }
  const uint32_t most = request.most() == 0 ? kUsual : request.most();
  reply->set_epoch(cache_->epoch());
  wire::ToProto(cache_->ListPrefixes(given ? &space : nullptr, most), reply);
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::Why(Context* context, const Message* request, Message* reply) {
  return dispatch_->Serve<v1::WhyRequest, v1::WhyReply>(
      context, People("rpc.why"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] { return DoWhy(*call->request(), call->reply()); });
      });
}

absl::Status AdminService::DoWhy(const v1::WhyRequest& request, v1::WhyReply* reply) const {
  PREFIXD_ASSIGN_OR_RETURN(const block::WhyQuery query, wire::FromProto(request));
  const block::PastAnswers past = cache_->Why(query);
  reply->set_epoch(cache_->epoch());
  reply->set_remembered(past.remembered);
  for (const block::PastAnswer& answer : past.answers) wire::ToProto(answer, reply->add_answers());
  return absl::OkStatus();
}

AdminService::Reactor* AdminService::ListPins(Context* context, const Message* request,
                                              Message* reply) {
  return dispatch_->Serve<v1::ListPinsRequest, v1::ListPinsReply>(
      context, People("rpc.list_pins"), request, reply, [this](auto* call) {
        dispatch_->QuickAdmin(call, [=, this] {
          v1::ListPinsReply* const reply = call->reply();
          reply->set_epoch(cache_->epoch());
          for (const block::PinInfo& pin : cache_->ListPins())
            wire::ToProto(pin, reply->add_pins());
          return absl::OkStatus();
        });
      });
}

AdminService::Reactor* AdminService::EndSession(Context* context, const Message* request,
                                                Message* reply) {
  return dispatch_->Serve<v1::EndSessionRequest, v1::EndSessionReply>(
      context, People("rpc.end_session"), request, reply, [this](auto* call) {
        dispatch_->Admin(call, [=, this] { return DoEndSession(*call->request(), call->reply()); });
      });
}

absl::Status AdminService::DoEndSession(const v1::EndSessionRequest& request,
                                        v1::EndSessionReply* reply) {
  const block::SessionName session{request.session()};
  const bool ended = sessions_->End(session);
  reply->set_epoch(cache_->epoch());
  const std::vector<block::SessionInfo> left = cache_->ListSessions();
  const auto kept = std::find_if(left.begin(), left.end(),
                                 [session](const auto& info) { return info.session == session; });
  if (kept != left.end()) {
    reply->set_still_held(true);
    reply->set_pid(kept->pid);
    return absl::OkStatus();
  }
  if (ended) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("end_session: no session ", absl::Hex(session.value)));
}

}  // namespace prefixd::daemon
