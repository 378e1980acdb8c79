#include "daemon/shares.h"

#include "absl/strings/match.h"

namespace prefixd::daemon {
namespace {

template <typename Key>
size_t CountOf(const std::map<Key, size_t>& counts, const Key& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

template <typename Key>
void Less(std::map<Key, size_t>* counts, const Key& key) {
  const auto found = counts->find(key);
  if (--found->second == 0) counts->erase(found);
}

}  // namespace

std::string HostOf(const std::string& peer) {
  if (!absl::StartsWith(peer, "ipv")) return "";
  return peer.substr(0, peer.rfind(':'));
}

Shares::Share Shares::Take(block::SessionId session, const std::string& peer) {
  const std::string host = HostOf(peer);
  {
    base::MutexLock lock(mutex_);
    if (!Fits(CountOf(sessions_, session))) return nullptr;
    if (!host.empty() && !Fits(CountOf(hosts_, host))) return nullptr;
    ++all_;
    ++sessions_[session];
    if (!host.empty()) ++hosts_[host];
  }
  return Share(
      this, [session, host](void* self) { static_cast<Shares*>(self)->GiveBack(session, host); });
}

Shares::Share Shares::TakeAs(const std::string& owner) {
  {
    base::MutexLock lock(mutex_);
    if (!Fits(CountOf(hosts_, owner))) return nullptr;
    ++all_;
    ++hosts_[owner];
  }
  return Share(this, [owner](void* self) { static_cast<Shares*>(self)->GiveBackOf(owner); });
}

size_t Shares::taken() const {
  base::MutexLock lock(mutex_);
  return all_;
}

void Shares::GiveBackOf(const std::string& host) {
  base::MutexLock lock(mutex_);
  --all_;
  Less(&hosts_, host);
}

void Shares::GiveBack(block::SessionId session, const std::string& host) {
  base::MutexLock lock(mutex_);
  --all_;
  Less(&sessions_, session);
  if (!host.empty()) Less(&hosts_, host);
}

}  // namespace prefixd::daemon
