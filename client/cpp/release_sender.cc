#include "release_sender.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>

namespace prefixd::client {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{5};  // to wait for a call that carries them
constexpr std::chrono::seconds kSendDeadline{1};
// After a release the thread looks every kPatience for so long, so that the next ones need not wake
// it.
constexpr std::chrono::milliseconds kAwake{100};

}  // namespace

ReleaseSender::Waiting& ReleaseSender::ListOf(const Session& session) {
  if (waiting_.session != session)
    waiting_ = {.session = session, .releases = {}, .again = {}, .abandoned = {}};
  if (waiting_.empty()) due_ = steady_clock::now() + kPatience;
  if (!thread_.joinable() && !stopped_) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {  // no thread: a call or the session's end tells it
    }
  }
  return waiting_;
}

void ReleaseSender::WakeIfAsleep() {
  if (asleep_) changed_.NotifyAll();
}

void ReleaseSender::Release(const Session& session, v1::Released released) {
  if (connection_->session() != session) return;
  base::MutexLock lock(mutex_);
  ListOf(session).releases.push_back(std::move(released));
  WakeIfAsleep();
}

void ReleaseSender::ReleaseAgain(const Session& session, v1::Released released) {
  if (connection_->session() != session) return;
  base::MutexLock lock(mutex_);
  ListOf(session).again.push_back(std::move(released));
  WakeIfAsleep();
}

void ReleaseSender::Abandon(const Session& session, block::ReservationId reservation) {
  if (connection_->session() != session) return;
  base::MutexLock lock(mutex_);
  ListOf(session).abandoned.push_back(reservation);
  WakeIfAsleep();
}

std::vector<v1::Released> ReleaseSender::Take(const Session& session, size_t most) {
  base::MutexLock lock(mutex_);
  if (waiting_.session != session) return {};
  std::vector<v1::Released>& releases = waiting_.releases;
  const auto cut = releases.begin() + static_cast<ptrdiff_t>(std::min(most, releases.size()));
  std::vector<v1::Released> taken(std::make_move_iterator(releases.begin()),
                                  std::make_move_iterator(cut));
  releases.erase(releases.begin(), cut);
  return taken;
}

void ReleaseSender::Run() {
  base::MutexLock lock(mutex_);
  while (!stopped_) {
    if (waiting_.empty()) {
      asleep_ = steady_clock::now() >= due_ + kAwake;
      if (asleep_) {
        changed_.Wait(mutex_);
        asleep_ = false;
      } else {
        changed_.WaitUntil(mutex_, steady_clock::now() + kPatience);
      }
    } else if (!draining_ && steady_clock::now() < due_) {
      changed_.WaitUntil(mutex_, due_);
    } else {
      const Waiting now = std::exchange(
          waiting_, {.session = waiting_.session, .releases = {}, .again = {}, .abandoned = {}});
      sending_ = true;
      mutex_.unlock();
      Send(now);
      mutex_.lock();
      sending_ = false;
      changed_.NotifyAll();
    }
  }
}

void ReleaseSender::Send(const Waiting& waiting) {
  const Session& session = waiting.session;
  const auto release = [&](std::span<const v1::Released> releases) {
    v1::ReleaseRequest request;
    request.set_session(session.id);
    for (const v1::Released& released : releases) *request.add_release() = released;
    (void)connection_->Call(&Connection::Stub::Release, session, request,
                            steady_clock::now() + kSendDeadline, wire::DirectVerb::kRelease);
  };
  if (!waiting.releases.empty()) release(waiting.releases);
  // If it had arrived after all, the daemon answers NOT_FOUND, which must not fail the others.
  for (const v1::Released& one : waiting.again) release({&one, 1});
  for (const block::ReservationId reservation : waiting.abandoned) {
    v1::AbandonRequest request;
    request.set_session(session.id);
    request.set_reservation(reservation.value);
    (void)connection_->Call(&Connection::Stub::Abandon, session, request,
                            steady_clock::now() + kSendDeadline, wire::DirectVerb::kAbandon);
  }
}

bool ReleaseSender::Drain(base::Deadline deadline) {
  base::MutexLock lock(mutex_);
  draining_ = true;
  changed_.NotifyAll();
  while ((!waiting_.empty() || sending_) && thread_.joinable() && !stopped_) {
    if (!changed_.WaitUntil(mutex_, deadline)) break;
  }
  draining_ = false;
  return waiting_.empty() && !sending_;
}

void ReleaseSender::Stop() {
  std::thread thread;
  {
    base::MutexLock lock(mutex_);
    stopped_ = true;
    waiting_ = {};
    thread.swap(thread_);
    changed_.NotifyAll();
  }
  if (thread.joinable()) thread.join();
}

}  // namespace prefixd::client
