// A daemon that holds two spaces and remembers what it was asked, on a unix socket of its own.
#pragma once
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "prefixd/v1/admin.grpc.pb.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"
#include "tests/cli/samples.h"

namespace prefixd::cli {

class FakeDaemon final : public v1::Admin::Service, public v1::PrefixCache::Service {
 public:
  FakeDaemon() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prefixd_cli_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    address_ = "unix://" + folder_ + "/p.sock";
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::Admin::Service*>(this));
    builder.RegisterService(static_cast<v1::PrefixCache::Service*>(this));
    server_ = builder.BuildAndStart();
    for (const uint8_t id : {uint8_t{0x3f}, uint8_t{0x40}}) *spaces.add_spaces() = SampleSpace(id);
    answer.set_matched_tokens(3);
    answer.set_restorable_tokens(3);
    answer.set_kind(v1::MATCH_KIND_EXACT);
    answer.set_match_ended_by(v1::END_REASON_REQUEST_ENDED);
    pinned.set_pin(0x5f3a000000000012u);
    pinned.set_pinned_tokens(2);
    pinned.set_bytes(uint64_t{13} << 20);
    *pinned.mutable_answer() = answer;
    pinned.mutable_answer()->set_matched_tokens(2);
    pinned.mutable_answer()->set_match_ended_by(v1::END_REASON_DIVERGED);
    pinned.mutable_answer()->set_diverged_sequences(312);
  }
  ~FakeDaemon() override {
    server_->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(folder_);
  }
  const std::string& address() const { return address_; }
  void SetServing(const std::string& service, bool serving) {
    server_->GetHealthCheckService()->SetServingStatus(service, serving);
  }
  void SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

  // What it answers; set before the call.
  v1::ListSpacesReply spaces;
  v1::Answer answer;
  v1::FlushReply flushed;
  std::atomic<int> stats_asked{0};
  int flush_waits_for_stats = 0;  // it ends once the stats were asked for so often
  v1::PrefetchReply::Hint hint;
  grpc::Status refusal;  // of every Admin call but ListSpaces, when not OK
  std::string opens_as = SampleId(0x3f);
  bool hides_spaces = false;

  v1::PinReply pinned;
  // What it was asked; read after the call.
  std::vector<std::string> cleared;
  std::vector<uint64_t> purge_cursors;
  uint64_t purge_leaves = 0;
  std::vector<uint64_t> ended;
  std::string explained;
  v1::SpaceIdentity opened;
  v1::AcquireRequest matched;
  v1::PinRequest pinning;
  v1::UnpinRequest unpinned;
  v1::WhyRequest asked_why;
  v1::ListPrefixesRequest asked_prefixes;
  v1::SetBudgetsRequest budgets;
  v1::SetSpaceLimitsRequest limited;
  v1::AcquireRequest prefetched;
  std::vector<v1::VerifyRequest> verified;

  grpc::Status GetStats(grpc::ServerContext*, const v1::GetStatsRequest*,
                        v1::GetStatsReply* reply) override {
    ++stats_asked;
    stats_asked.notify_all();
    *reply = SampleStats();
    if (hides_spaces) reply->clear_spaces();
    reply->set_spaces_hidden(hides_spaces);
    return refusal;
  }
  grpc::Status ListSpaces(grpc::ServerContext*, const v1::ListSpacesRequest* request,
                          v1::ListSpacesReply* reply) override {
    explained = request->explain_against();
    *reply = spaces;
    return grpc::Status::OK;
  }
  grpc::Status Clear(grpc::ServerContext*, const v1::ClearRequest* request,
                     v1::ClearReply* reply) override {
    cleared.push_back(request->space_id());
    if (!request->purge() || request->cursor() == 0) {
      reply->set_spaces(request->space_id().empty() ? 2 : 1);
    }
    if (!request->purge()) return refusal;
    purge_cursors.push_back(request->cursor());
    reply->set_next(request->cursor() == 20 ? 0 : request->cursor() + 10);
    reply->set_passed_bytes(1 << 20);
    reply->set_total_bytes(3 << 20);
    reply->set_removed_bytes(request->cursor() == 0 ? 0 : 1 << 20);
    reply->set_rewritten_bytes(request->cursor() == 0 ? 0 : 1 << 10);
    reply->set_leased_bytes(purge_leaves);
    return refusal;
  }
  // Three steps, a bad page in the second.
  grpc::Status Verify(grpc::ServerContext*, const v1::VerifyRequest* request,
                      v1::VerifyReply* reply) override {
    verified.push_back(*request);
    reply->set_next(request->cursor() == 20 ? 0 : request->cursor() + 10);
    reply->set_pages(2);
    reply->set_bytes(1 << 20);
    reply->set_bad(request->cursor() == 10 ? 1 : 0);
    reply->set_in_use(2);
    reply->set_passed_bytes(1 << 20);
    reply->set_total_bytes(3 << 20);
    return refusal;
  }
  grpc::Status Prefetch(grpc::ServerContext*, const v1::AcquireRequest* request,
                        v1::PrefetchReply* reply) override {
    prefetched = *request;
    *reply->add_hints() = hint;
    return refusal;
  }
  grpc::Status Flush(grpc::ServerContext*, const v1::FlushRequest*,
                     v1::FlushReply* reply) override {
    for (int asked = stats_asked; asked < flush_waits_for_stats; asked = stats_asked) {
      stats_asked.wait(asked);
    }
    *reply = flushed;
    return refusal;
  }
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest*,
                            v1::ListSessionsReply* reply) override {
    *reply = SampleSessions();
    return refusal;
  }
  grpc::Status ListLeases(grpc::ServerContext*, const v1::ListLeasesRequest*,
                          v1::ListLeasesReply* reply) override {
    *reply = SampleLeases();
    return refusal;
  }
  grpc::Status EndSession(grpc::ServerContext*, const v1::EndSessionRequest* request,
                          v1::EndSessionReply* reply) override {
    ended.push_back(request->session());
    reply->set_still_held(true);
    reply->set_pid(41'872);
    return refusal;
  }
  grpc::Status ListPins(grpc::ServerContext*, const v1::ListPinsRequest*,
                        v1::ListPinsReply* reply) override {
    *reply = SamplePins();
    return refusal;
  }
  grpc::Status Pin(grpc::ServerContext*, const v1::PinRequest* request,
                   v1::PinReply* reply) override {
    pinning = *request;
    *reply = pinned;
    return refusal;
  }
  grpc::Status Unpin(grpc::ServerContext*, const v1::UnpinRequest* request,
                     v1::UnpinReply* reply) override {
    unpinned = *request;
    reply->set_bytes(uint64_t{13} << 20);
    return refusal;
  }
  grpc::Status SetBudgets(grpc::ServerContext*, const v1::SetBudgetsRequest* request,
                          v1::SetBudgetsReply* reply) override {
    budgets = *request;
    reply->set_ram_budget_bytes(uint64_t{2} << 30);
    reply->set_ram_used_bytes(uint64_t{3} << 30);
    reply->set_ram_over_bytes(uint64_t{1} << 30);
    reply->set_ssd_budget_bytes(uint64_t{20} << 30);
    return refusal;
  }
  grpc::Status SetSpaceLimits(grpc::ServerContext*, const v1::SetSpaceLimitsRequest* request,
                              v1::SetSpaceLimitsReply* reply) override {
    limited = *request;
    reply->set_remembered(true);
    return refusal;
  }
  grpc::Status ListPrefixes(grpc::ServerContext*, const v1::ListPrefixesRequest* request,
                            v1::ListPrefixesReply* reply) override {
    asked_prefixes = *request;
    *reply = SamplePrefixes();
    return grpc::Status::OK;
  }
  grpc::Status Why(grpc::ServerContext*, const v1::WhyRequest* request,
                   v1::WhyReply* reply) override {
    asked_why = *request;
    *reply = SampleWhy();
    return refusal;
  }
  grpc::Status GetConfig(grpc::ServerContext*, const v1::GetConfigRequest*,
                         v1::GetConfigReply* reply) override {
    reply->set_version("0.1.0");
    return refusal;
  }
  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest*,
                      grpc::ServerWriter<v1::SessionEvent>* writer) override {
    v1::SessionEvent event;
    event.mutable_attached()->set_session(kSession);
    writer->Write(event);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  grpc::Status OpenSpace(grpc::ServerContext*, const v1::OpenSpaceRequest* request,
                         v1::OpenSpaceReply* reply) override {
    opened = request->identity();
    reply->set_space(kSpace);
    reply->set_space_id(opens_as);
    return request->session() == kSession ? grpc::Status::OK
                                          : grpc::Status(grpc::StatusCode::NOT_FOUND, "session");
  }
  grpc::Status Match(grpc::ServerContext*, const v1::AcquireRequest* request,
                     v1::AcquireReply* reply) override {
    matched = *request;
    *reply->add_answers() = answer;
    return grpc::Status::OK;
  }

  static constexpr uint64_t kSession = 4711;
  static constexpr uint64_t kSpace = 12;

 private:
  std::string folder_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace prefixd::cli
