#include "core.h"

#include <utility>

#include "base/status.h"

namespace prefixd::client {
namespace {

using std::chrono::steady_clock;

constexpr size_t kLoadThreads = 4;
constexpr size_t kStoreThreads = 4;
constexpr std::chrono::seconds kReopenDeadline{2};  // for all spaces, on the attaching thread
constexpr std::chrono::seconds kTellPinsDeadline{1};
constexpr std::chrono::seconds kFarewellDeadline{1};  // for what still waits when the client ends

}  // namespace

Core::Core(ClientOptions options)
    : options_(std::move(options)),
      connection_(std::make_shared<Connection>(
          Connection::Options{.address = options_.address,
                              .token_file = options_.token_file,
                              .name = options_.name,
                              .engine = options_.engine,
                              .use_arena = options_.use_arena,
                              .staging_bytes = options_.staging_bytes})),
      release_sender_(std::make_shared<ReleaseSender>(connection_)),
      not_shared_(connection_),
      loads_("prefixd loads", kLoadThreads, 0),
      stores_("prefixd stores", kStoreThreads, 0) {
  connection_->Start(this, [release_sender = std::weak_ptr<ReleaseSender>(release_sender_)](
                               const Session& session, block::LeaseId lease) {
    v1::Released released;
    released.set_lease(lease.value);
    if (const auto open = release_sender.lock()) open->Release(session, std::move(released));
  });
}

void Core::Keep(const std::shared_ptr<SpaceState>& space) {
  base::MutexLock lock(mutex_);
  std::erase_if(spaces_, [](const std::weak_ptr<SpaceState>& kept) { return kept.expired(); });
  spaces_.push_back(space);
}

absl::StatusOr<OpenedUnder> Core::Open(SpaceState& space, base::Deadline deadline) {
  OpenedUnder opened;
  PREFIXD_ASSIGN_OR_RETURN(opened.attachment, connection_->RequireAttachment());
  PREFIXD_ASSIGN_OR_RETURN(opened.space,
                           space.EnsureOpen(*connection_, opened.attachment->session(), deadline));
  return opened;
}

// Code that pins may call as long as the mapping lives, which may be longer than this.
void Core::TellDevicePins(const Attachment& attachment) {
  if (attachment.arena() == nullptr) return;
  const auto send = [session = attachment.session(),
                     connection = std::weak_ptr<Connection>(connection_)](
                        const std::string& slabs) -> absl::Status {
    const auto open = connection.lock();
    if (open == nullptr) return absl::NotFoundError("client: closed");
    v1::DevicePinsRequest request;
    request.set_session(session.id);
    request.set_slabs(slabs);
    return open
        ->Call(&Connection::Stub::TellDevicePins, session, request,
               steady_clock::now() + kTellPinsDeadline)
        .status();
  };
  attachment.arena()->device_pins().Begin(send);
}

void Core::Attached(const Attachment& attachment) {
  const Session& session = attachment.session();
  // First: what a daemon that restarted gives back may be pinned.
  TellDevicePins(attachment);
  board_.Begin(session);
  std::vector<std::weak_ptr<SpaceState>> spaces;
  {
    base::MutexLock lock(mutex_);
    spaces = spaces_;
  }
  const base::Deadline deadline = steady_clock::now() + kReopenDeadline;
  for (const std::weak_ptr<SpaceState>& kept : spaces) {
    // The first Begin() gets the refusal again, with its message.
    if (const auto space = kept.lock()) (void)space->EnsureOpen(*connection_, session, deadline);
  }
  not_shared_.Begin(session);
}

void Core::Event(const Session& session, const v1::SessionEvent& event) {
  board_.Tell(session, event);
}

void Core::Ended(const Session& session) {
  not_shared_.End();
  board_.End(session);
}

void Core::StartLoad(const std::shared_ptr<FetchedPages>& load) {
  {
    base::MutexLock lock(mutex_);
    std::erase_if(loading_, [](const std::weak_ptr<FetchedPages>& kept) { return kept.expired(); });
    loading_.push_back(load);
  }
  const auto run = [load, trace = TraceOfThread()] {
    const TraceScope scope(trace);
    load->Run();
  };
  if (!loads_.Post(run)) load->Cancel();
}

void Core::Stop() {
  release_sender_->Drain(steady_clock::now() + kFarewellDeadline);
  {
    base::MutexLock lock(mutex_);
    for (const std::weak_ptr<FetchedPages>& loading : loading_) {
      if (const auto load = loading.lock()) load->Cancel();
    }
  }
  connection_->Stop();
  release_sender_->Stop();
  loads_.Stop();
  stores_.Stop();
}

}  // namespace prefixd::client
