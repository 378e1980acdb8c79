#include "bench/common/raw_session.h"

#include <algorithm>
#include <chrono>

#include "grpcpp/create_channel.h"

#include "base/status.h"
#include "bench/common/patience.h"
#include "block/arena_file.h"
#include "client/cpp/fd_exchange.h"
#include "client/cpp/staging_memory.h"
#include "wire/bulk_channel.h"
#include "wire/identity.h"
#include "wire/target.h"

namespace prefixd::bench {
void SetDeadline(grpc::ClientContext* context, std::chrono::milliseconds patience) {
  context->set_deadline(std::chrono::system_clock::now() + patience);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           wire::ConnectionWindow window,
                                           const std::shared_ptr<const wire::Bearer>& bearer) {
  const absl::StatusOr<wire::Target> target = wire::TargetOf(address);
  if (!target.ok()) return nullptr;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  wire::SetBulkArguments(
      window, [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target->address, target->credentials, arguments, wire::Carrying(bearer));
}

absl::StatusOr<std::unique_ptr<RawSession>> RawSession::Open(const Options& options) {
  std::unique_ptr<RawSession> session(new RawSession());
  PREFIXD_RETURN_IF_ERROR(session->Attach(options));
  if (session->attached_.arena()) {
    PREFIXD_RETURN_IF_ERROR(session->ReceiveFiles(options.address));
  }
  session->reader_ = std::thread([raw = session.get()] { raw->ReadEvents(); });
  return session;
}

absl::Status RawSession::Attach(const Options& options) {
  std::shared_ptr<wire::Bearer> bearer;
  if (!options.token_file.empty()) {
    bearer = std::make_shared<wire::Bearer>(options.token_file);
    PREFIXD_RETURN_IF_ERROR(bearer->Reload());
  }
  channel_ = OpenChannel(options.address, wire::ConnectionWindow::kNarrow, bearer);
  address_ = options.address;
  page_channel_ = OpenChannel(options.address, wire::ConnectionWindow::kEstimated, bearer);
  if (channel_ == nullptr) return wire::TargetOf(address_).status();
  stub_ = v1::PrefixCache::NewStub(channel_);
  v1::AttachRequest request;
  request.set_worker(options.name);
  request.set_protocol(1);
  request.set_library("prefixd-bench");
  request.set_wants_arena(options.wants_arena);
  request.set_staging_bytes(options.staging_bytes);
  request.set_arena_version(block::kArenaVersion);
  context_.set_wait_for_ready(true);
  events_ = stub_->Attach(&context_, request);
  v1::SessionEvent event;
  if (!events_->Read(&event) || !event.has_attached()) {
    context_.TryCancel();
    const grpc::Status status = events_->Finish();
    return status.ok() ? absl::InternalError("attach: the stream began without Attached")
                       : FromGrpc("attach", status);
  }
  attached_ = event.attached();
  epoch_ = event.epoch();
  return absl::OkStatus();
}

absl::Status RawSession::ReceiveFiles(const std::string& address) {
  const auto socket = client::PathBeside(address, attached_.fd_socket());
  if (!socket) return absl::InternalError("files: no socket beside " + address);
  return client::ReceiveFiles(
      *socket, attached_.key(), kPatience, [&](client::SessionFiles files) -> absl::Status {
        PREFIXD_ASSIGN_OR_RETURN(
            arena_, client::ArenaMapping::Map(std::move(files.arena), std::move(files.lock),
                                              {.file_bytes = attached_.arena_file_bytes(),
                                               .data_offset = attached_.arena_data_offset()}));
        if (!files.staging) return absl::OkStatus();
        const uint64_t bytes = attached_.staging_bytes();
        PREFIXD_ASSIGN_OR_RETURN(const auto staging,
                                 client::StagingMemory::Map(std::move(files.staging), bytes));
        staging_ = staging->Allocate(bytes);
        return absl::OkStatus();
      });
}

void RawSession::End() {
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
}

RawSession::~RawSession() { End(); }

void RawSession::ReadEvents() {
  v1::SessionEvent event;
  while (events_->Read(&event)) {
    base::MutexLock lock(mutex_);
    if (event.has_ready()) {
      ready_[{event.ready().lease(), event.ready().group()}] = event.ready();
    } else if (event.has_failed()) {
      failed_[event.failed().lease()] = event.failed();
    }
    changed_.NotifyAll();
  }
  events_->Finish();
}

absl::StatusOr<uint64_t> RawSession::OpenSpace(const block::SpaceIdentity& identity) {
  v1::OpenSpaceRequest request;
  request.set_session(id());
  *request.mutable_identity() = wire::ToProto(identity);
  v1::OpenSpaceReply reply;
  grpc::ClientContext context;
  PREFIXD_RETURN_IF_ERROR(FromGrpc("open", stub_->OpenSpace(&context, request, &reply)));
  return reply.space();
}

absl::StatusOr<v1::AcquireReply> RawSession::Acquire(const v1::AcquireRequest& request) {
  v1::AcquireReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  PREFIXD_RETURN_IF_ERROR(FromGrpc("acquire", stub_->Acquire(&context, request, &reply)));
  return reply;
}

absl::Status RawSession::Release(const std::vector<uint64_t>& leases) {
  v1::ReleaseRequest request;
  request.set_session(id());
  for (uint64_t lease : leases) request.add_release()->set_lease(lease);
  v1::Ack reply;
  grpc::ClientContext context;
  return FromGrpc("release", stub_->Release(&context, request, &reply));
}

absl::StatusOr<v1::LeaseReady> RawSession::WaitFor(uint64_t lease, uint32_t group) {
  const base::Deadline deadline = std::chrono::steady_clock::now() + kPatience;
  base::MutexLock lock(mutex_);
  while (ready_.count({lease, group}) == 0) {
    if (failed_.count(lease) > 0) return absl::DataLossError("acquire: a group failed");
    if (!changed_.WaitUntil(mutex_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("acquire: group ", group, " does not become ready"));
    }
  }
  return ready_[{lease, group}];
}

absl::Status RawSession::WaitGroupReady(const v1::Answer& answer, uint32_t group) {
  for (const v1::GroupPages& pages : answer.pages()) {
    if (pages.group() == group && pages.ready()) return absl::OkStatus();
  }
  return WaitFor(answer.lease(), group).status();
}

absl::Status RawSession::WaitReady(uint32_t block_tokens, v1::Answer* answer) {
  for (v1::GroupPages& pages : *answer->mutable_pages()) {
    if (pages.ready()) continue;
    PREFIXD_ASSIGN_OR_RETURN(const v1::LeaseReady ready, WaitFor(answer->lease(), pages.group()));
    pages.mutable_offset()->Resize(pages.rung_size(), ~uint64_t{0});
    for (int i = 0; i < ready.offset_size(); ++i) {
      const auto block = static_cast<int>(ready.first_token(i) / block_tokens);
      pages.set_offset(block, ready.offset(i));
    }
    base::MutexLock lock(mutex_);
    ready_.erase({answer->lease(), pages.group()});
    pages.set_ready(true);
  }
  return absl::OkStatus();
}

}  // namespace prefixd::bench
