#include "bench/raw_session.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

#include "base/status.h"
#include "block/arena_file.h"
#include "wire/bulk_channel.h"
#include "wire/identity.h"

namespace prefixd::bench {
namespace {

constexpr std::chrono::seconds kPatience{60};

absl::Status FromGrpc(const char* call, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(call, ": ", status.error_message()));
}

struct Files {
  int arena = -1;
  int lock = -1;
  int staging = -1;
};

// The daemon's message: the key again, and the descriptors beside it.
absl::StatusOr<Files> ReceiveDescriptors(int socket) {
  char key[16];
  iovec data{.iov_base = key, .iov_len = sizeof(key)};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(key)) {
    return absl::InternalError(absl::StrCat("files: no answer: ", std::strerror(errno)));
  }
  Files files;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len < CMSG_LEN(2 * sizeof(int))) {
    return absl::InternalError("files: an answer without descriptors");
  }
  std::memcpy(&files.arena, CMSG_DATA(header), sizeof(int));
  std::memcpy(&files.lock, CMSG_DATA(header) + sizeof(int), sizeof(int));
  if (header->cmsg_len >= CMSG_LEN(3 * sizeof(int))) {
    std::memcpy(&files.staging, CMSG_DATA(header) + 2 * sizeof(int), sizeof(int));
  }
  return files;
}

absl::StatusOr<Files> AskForFiles(const std::string& path, const std::string& key) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  absl::StatusOr<Files> files = absl::InternalError(absl::StrCat("files: nobody at ", path));
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(socket, key.data(), key.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(key.size())) {
    files = ReceiveDescriptors(socket);
  }
  ::close(socket);
  return files;
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           wire::ConnectionWindow window) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  wire::SetBulkArguments(
      window, [&arguments](const char* name, int value) { arguments.SetInt(name, value); });
  // "unix:///path" is an address of gRPC's own.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
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
  channel_ = OpenChannel(options.address);
  page_channel_ = OpenChannel(options.address, wire::ConnectionWindow::kEstimated);
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
  const std::filesystem::path socket = address.substr(std::strlen("unix://"));
  PREFIXD_ASSIGN_OR_RETURN(
      const Files files,
      AskForFiles(std::filesystem::path(socket).replace_filename(attached_.fd_socket()),
                  attached_.key()));
  lock_ = files.lock;
  arena_bytes_ = attached_.arena_file_bytes();
  void* const arena =
      ::mmap(nullptr, arena_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, files.arena, 0);
  ::close(files.arena);
  if (arena == MAP_FAILED) return absl::InternalError("files: the arena cannot be mapped");
  arena_ = static_cast<const std::byte*>(arena);
  if (files.staging < 0) return absl::OkStatus();
  const uint64_t bytes = attached_.staging_bytes();
  void* const staging =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files.staging, 0);
  ::close(files.staging);
  if (staging == MAP_FAILED) return absl::InternalError("files: staging cannot be mapped");
  staging_ = {static_cast<std::byte*>(staging), bytes};
  return absl::OkStatus();
}

void RawSession::End() {
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
}

RawSession::~RawSession() {
  End();
  if (arena_ != nullptr) ::munmap(const_cast<std::byte*>(arena_), arena_bytes_);
  if (lock_ >= 0) ::close(lock_);
  if (!staging_.empty()) ::munmap(staging_.data(), staging_.size());
}

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
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
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

absl::Status RawSession::WaitGroupReady(const v1::Answer& answer, uint32_t group) {
  for (const v1::GroupPages& pages : answer.pages()) {
    if (pages.group() == group && pages.ready()) return absl::OkStatus();
  }
  const base::Deadline deadline = std::chrono::steady_clock::now() + kPatience;
  base::MutexLock lock(mutex_);
  while (ready_.count({answer.lease(), group}) == 0) {
    if (failed_.count(answer.lease()) > 0) return absl::DataLossError("acquire: a group failed");
    if (!changed_.WaitUntil(mutex_, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("acquire: group ", group, " does not become ready"));
    }
  }
  return absl::OkStatus();
}

absl::Status RawSession::WaitReady(uint32_t block_tokens, v1::Answer* answer) {
  const base::Deadline deadline = std::chrono::steady_clock::now() + kPatience;
  base::MutexLock lock(mutex_);
  for (v1::GroupPages& pages : *answer->mutable_pages()) {
    if (pages.ready()) continue;
    const std::pair<uint64_t, uint32_t> key{answer->lease(), pages.group()};
    while (ready_.count(key) == 0) {
      if (failed_.count(answer->lease()) > 0) return absl::DataLossError("acquire: a group failed");
      if (!changed_.WaitUntil(mutex_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat("acquire: group ", pages.group(), " does not become ready"));
      }
    }
    const v1::LeaseReady& ready = ready_[key];
    pages.mutable_offset()->Resize(pages.rung_size(), ~uint64_t{0});
    for (int i = 0; i < ready.offset_size(); ++i) {
      const auto block = static_cast<int>(ready.first_token(i) / block_tokens);
      pages.set_offset(block, ready.offset(i));
    }
    ready_.erase(key);
    pages.set_ready(true);
  }
  return absl::OkStatus();
}

}  // namespace prefixd::bench
