#include "daemon/shares.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace prefixd::daemon {
std::string HostOf(const std::string& peer) {
  if (!absl::StartsWith(peer, "ipv")) return "";
  return peer.substr(0, peer.rfind(':'));
}

Shares::Share Shares::Take(block::SessionId session, const std::string& peer, uint64_t bytes) {
  std::vector<std::string> owners = {absl::StrCat("session ", session.value)};
  if (std::string host = HostOf(peer); !host.empty()) owners.push_back(std::move(host));
  return TakeOf(std::move(owners), bytes);
}

Shares::Share Shares::TakeAs(const std::string& owner, uint64_t bytes) {
  return TakeOf({owner}, bytes);
}

Shares::Share Shares::TakeOf(std::vector<std::string> owners, uint64_t bytes) {
  {
    base::MutexLock lock(mutex_);
    for (const std::string& owner : owners) {
      const auto found = owners_.find(owner);
      if (!Fits(found == owners_.end() ? Sum{} : found->second, bytes)) return nullptr;
    }
    for (const std::string& owner : owners) {
      Sum& own = owners_[owner];
      ++own.threads;
      own.bytes += bytes;
    }
    ++all_.threads;
    all_.bytes += bytes;
  }
  return Share(this, [owners = std::move(owners), bytes](void* self) {
    static_cast<Shares*>(self)->GiveBack(owners, bytes);
  });
}

// One request as large as `most_bytes_` fits while nobody has any.
bool Shares::Fits(const Sum& own, uint64_t bytes) const {
  if (own.threads >= most_ - all_.threads) return false;
  return bytes == 0 || own.bytes + all_.bytes + bytes <= most_bytes_;
}

size_t Shares::taken() const {
  base::MutexLock lock(mutex_);
  return all_.threads;
}

void Shares::GiveBack(const std::vector<std::string>& owners, uint64_t bytes) {
  base::MutexLock lock(mutex_);
  --all_.threads;
  all_.bytes -= bytes;
  for (const std::string& owner : owners) {
    const auto found = owners_.find(owner);
    found->second.bytes -= bytes;
    if (--found->second.threads == 0) owners_.erase(found);
  }
}

}  // namespace prefixd::daemon
