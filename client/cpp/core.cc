#include "core.h"

#include <utility>

#include "base/status.h"

namespace prefixd::client {
namespace {

using std::chrono::steady_clock;

constexpr size_t kLoadThreads = 4;
constexpr std::chrono::seconds kReopenDeadline{2};    // of all spaces, on the attaching thread
constexpr std::chrono::seconds kFarewellDeadline{1};  // of one Release or Abandon

}  // namespace

Core::Core(ClientOptions options)
    : options_(std::move(options)),
      connection_(std::make_shared<Connection>(options_.address, options_.name)),
      loads_(kLoadThreads),
      farewells_(1) {
  connection_->Start([this](const Session& session) { OpenAll(session); });
}

void Core::Keep(const std::shared_ptr<SpaceState>& space) {
  base::MutexLock lock(mutex_);
  std::erase_if(spaces_, [](const std::weak_ptr<SpaceState>& kept) { return kept.expired(); });
  spaces_.push_back(space);
}

absl::StatusOr<OpenedSpace> Core::Open(SpaceState& space, base::Deadline deadline) {
  PREFIXD_ASSIGN_OR_RETURN(const Session session, connection_->RequireSession());
  return space.EnsureOpen(*connection_, session, deadline);
}

void Core::OpenAll(const Session& session) {
  std::vector<std::weak_ptr<SpaceState>> spaces;
  {
    base::MutexLock lock(mutex_);
    spaces = spaces_;
  }
  const base::Deadline deadline = steady_clock::now() + kReopenDeadline;
  for (const std::weak_ptr<SpaceState>& kept : spaces) {
    // A refusal comes again, with its sentence, from the first Begin().
    if (const auto space = kept.lock()) (void)space->EnsureOpen(*connection_, session, deadline);
  }
}

void Core::StartLoad(const std::shared_ptr<PageLoad>& load) {
  {
    base::MutexLock lock(mutex_);
    std::erase_if(loading_, [](const std::weak_ptr<PageLoad>& kept) { return kept.expired(); });
    loading_.push_back(load);
  }
  if (!loads_.Submit([load] { load->Run(); })) load->Cancel();
}

void Core::Release(const Session& session, v1::Released released) {
  farewells_.Submit([connection = connection_, session, released = std::move(released)] {
    if (connection->session() != session) return;
    v1::ReleaseRequest request;
    request.set_session(session.id);
    *request.add_release() = released;
    (void)connection->Call(&Connection::Stub::Release, session, request,
                           steady_clock::now() + kFarewellDeadline);
  });
}

void Core::Abandon(const Session& session, block::ReservationId reservation) {
  farewells_.Submit([connection = connection_, session, reservation] {
    if (connection->session() != session) return;
    v1::AbandonRequest request;
    request.set_session(session.id);
    request.set_reservation(reservation.value);
    (void)connection->Call(&Connection::Stub::Abandon, session, request,
                           steady_clock::now() + kFarewellDeadline);
  });
}

void Core::Stop() {
  farewells_.Drain(steady_clock::now() + kFarewellDeadline);
  {
    base::MutexLock lock(mutex_);
    for (const std::weak_ptr<PageLoad>& loading : loading_) {
      if (const auto load = loading.lock()) load->Cancel();
    }
  }
  connection_->Stop();
  farewells_.Stop();
  loads_.Stop();
}

}  // namespace prefixd::client
