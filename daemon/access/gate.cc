#include "daemon/access/gate.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "base/status.h"
#include "daemon/listen_address.h"
#include "daemon/unix_listener.h"
#include "wire/bearer.h"

namespace prefixd::daemon {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<gid_t> GroupsOf(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return {};
  std::vector<gid_t> groups(1 << 10);
  length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  const bool more = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0;
  groups.resize(more ? length / sizeof(gid_t) : 0);
  groups.push_back(peer.gid);
  return groups;
}

std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  const auto authentication = context.auth_context();
  if (authentication == nullptr) return names;
  for (const char* property : {"x509_subject_alternative_name", "x509_common_name"}) {
    for (const grpc::string_ref& name : authentication->FindPropertyValues(property)) {
      names.emplace_back(name.data(), name.size());
    }
  }
  return names;
}

std::string_view BearerOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto sent = metadata.find(wire::kBearerKey);
  if (sent == metadata.end()) return "";
  return {sent->second.data(), sent->second.size()};
}

// The start of what a caller sent, for messages.
std::string Shown(const std::string& text) { return absl::CHexEscape(text.substr(0, 64)); }

}  // namespace

Gate::Mark Gate::MarkOfFile() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec,
          info.st_mtim.tv_nsec};
}

absl::StatusOr<Principals> Gate::ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat("access: ", path, " cannot be read"));
  }
  absl::StatusOr<Principals> read = Principals::Parse(text.str());
  if (read.ok()) return read;
  return absl::InvalidArgumentError(
      absl::StrCat("access: ", path, ": ", std::string(read.status().message())));
}

absl::Status Gate::Open() {
  if (!has_file()) return absl::OkStatus();
  const Mark mark = MarkOfFile();
  PREFIXD_ASSIGN_OR_RETURN(Principals read, ReadFile(path_));
  Use(std::move(read));
  base::MutexLock lock(mutex_);
  mark_ = mark;
  return absl::OkStatus();
}

bool Gate::IsAsRead(const Mark& mark) const {
  base::MutexLock lock(mutex_);
  return mark == mark_;
}

// Workers of the tenants so far may have mapped the arena, whether or not the file names them
// still.
bool Gate::MayTakeOver(const Principals& read) const {
  base::MutexLock lock(mutex_);
  std::set<std::string> all = tenants_;
  all.insert(read.tenants().begin(), read.tenants().end());
  return all.size() <= 1 || tenants_.size() > 1;
}

void Gate::Use(Principals read) {
  base::MutexLock lock(mutex_);
  tenants_.insert(read.tenants().begin(), read.tenants().end());
  principals_ = std::make_shared<const Principals>(std::move(read));
}

void Gate::ReadAgainIfChanged() {
  if (IsAsRead(MarkOfFile())) return;
  base::MutexLock one(reading_);
  const Mark mark = MarkOfFile();
  if (IsAsRead(mark)) return;
  absl::StatusOr<Principals> read = ReadFile(path_);
  if (read.ok() && !MayTakeOver(*read)) {
    read = absl::InvalidArgumentError(
        absl::StrCat("access: ", path_,
                     " names a second tenant, and workers of the first may have mapped the "
                     "arena: restart prefixd"));
  }
  if (read.ok()) {
    Use(*std::move(read));
    spdlog::info("access: {} was read again", path_);
  } else {
    cache_->Count("access.bad_file");
    spdlog::warn("{}; the file before stays in force", std::string(read.status().message()));
  }
  base::MutexLock lock(mutex_);
  mark_ = mark;
}

std::shared_ptr<const Principals> Gate::principals() const {
  base::MutexLock lock(mutex_);
  return principals_;
}

bool Gate::has_tenants() const {
  base::MutexLock lock(mutex_);
  return tenants_.size() > 1;
}

Gate::Seen Gate::SeeOnTcp(const Principals& principals,
                          const grpc::ServerContextBase& context) const {
  const std::string_view sent = BearerOf(context);
  if (!sent.empty()) {
    const std::optional<base::Secret> secret = wire::ReadBearer(sent);
    PrincipalPtr who = secret.has_value() ? principals.OfToken(base::Sha256(*secret)) : nullptr;
    if (who == nullptr)
      return {nullptr, "a token that the access file does not have", "refused.wrong_token"};
    return {who, absl::StrCat("token ", who->name), ""};
  }
  const std::vector<std::string> names = CertificateNames(context);
  for (const std::string& name : names) {
    if (PrincipalPtr who = principals.OfCertificate(name)) {
      return {who, absl::StrCat("certificate ", who->name), ""};
    }
  }
  if (names.empty()) return {nullptr, "neither a token nor a certificate", "refused.no_token"};
  return {nullptr, absl::StrCat("certificate ", Shown(names.front())),
          "refused.unknown_certificate"};
}

Gate::Seen Gate::See(const grpc::ServerContextBase& context) {
  ReadAgainIfChanged();
  const std::shared_ptr<const Principals> principals = this->principals();
  const std::optional<int> socket = DescriptorOf(context.peer());
  Seen seen;
  if (!socket.has_value()) {
    seen = SeeOnTcp(*principals, context);
  } else {
    const std::optional<base::Peer> peer = UnixPeer(context.peer());
    if (!peer.has_value()) return {nullptr, "a peer that is gone", "refused.unknown_user"};
    seen = {principals->OfUser(peer->uid, GroupsOf(*socket)), absl::StrCat("user ", peer->uid),
            "refused.unknown_user"};
  }
  if (seen.who != nullptr && seen.who->expires <= absl::Now()) {
    return {nullptr,
            absl::StrCat(seen.what, ", which expired at ",
                         absl::FormatTime(seen.who->expires, absl::UTCTimeZone())),
            "refused.expired"};
  }
  return seen;
}

bool Gate::WithinRate(const Principal& who) {
  if (who.requests_per_s == 0) return true;
  const auto most = static_cast<double>(who.requests_per_s);
  const Clock::time_point now = Clock::now();
  base::MutexLock lock(mutex_);
  const auto [found, is_new] = rates_.try_emplace(who.name, Rate{.tokens = most, .at = now});
  Rate& rate = found->second;
  const std::chrono::duration<double> passed = now - rate.at;
  rate.tokens = std::min(most, rate.tokens + passed.count() * most);
  rate.at = now;
  if (rate.tokens < 1) return false;
  rate.tokens -= 1;
  return true;
}

grpc::Status Gate::Refuse(grpc::StatusCode code, const char* reason, const std::string& why) {
  cache_->Count(reason);
  uint64_t others = 0;
  {
    base::MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (logged_ != Clock::time_point() && now - logged_ < std::chrono::seconds(1)) {
      ++unlogged_;
      return {code, why};
    }
    logged_ = now;
    others = std::exchange(unlogged_, 0);
  }
  spdlog::warn("access: refused: {}{}", why,
               others == 0 ? "" : absl::StrCat("; and ", others, " others before"));
  return {code, why};
}

void Gate::NoteTlsRefusal(const std::string& why) {
  Refuse(grpc::StatusCode::UNAUTHENTICATED, "refused.tls",
         absl::StrCat("tls: a connection was refused: ", why));
}

grpc::Status Gate::Check(const grpc::ServerContextBase& context, std::string_view verb) {
  if (!has_file()) {
    if (DescriptorOf(context.peer()).has_value()) return grpc::Status::OK;
    const grpc::Status status = CheckToken(token_.has_value() ? &*token_ : nullptr, context);
    if (status.ok()) return status;
    return Refuse(status.error_code(),
                  BearerOf(context).empty() ? "refused.no_token" : "refused.wrong_token",
                  status.error_message());
  }
  const Seen seen = See(context);
  const std::string caller =
      absl::StrCat(std::string(verb), " from ", AddressOf(context.peer()), " by ", seen.what);
  if (seen.who == nullptr) {
    return Refuse(grpc::StatusCode::UNAUTHENTICATED, seen.reason,
                  absl::StrCat(caller,
                               ": the access file must name the caller by a token "
                               "($PREFIXD_TOKEN_FILE), certificate or user"));
  }
  const std::string missing = WhatIsMissing(verb, seen.who->role, seen.who->all());
  if (!missing.empty()) {
    return Refuse(grpc::StatusCode::PERMISSION_DENIED, "refused.role",
                  absl::StrCat(caller, ", ", NameOf(seen.who->role), " of tenant ",
                               seen.who->tenant, ": it wants ", missing));
  }
  if (!WithinRate(*seen.who)) {
    return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.rate",
                  absl::StrCat(caller, ": more than ", seen.who->requests_per_s,
                               " requests a second (the access file's requests_per_s)"));
  }
  return grpc::Status::OK;
}

PrincipalPtr Gate::WhoCalls(const grpc::ServerContextBase& context) {
  return has_file() ? See(context).who : nullptr;
}

std::string Gate::TenantOf(const grpc::ServerContextBase& context) {
  const PrincipalPtr who = WhoCalls(context);
  if (who != nullptr && !who->all()) return who->tenant;
  return daemon::TenantOf(AddressOf(context.peer()));
}

std::shared_ptr<void> Gate::TakeSeat(const grpc::ServerContextBase& context, grpc::Status* status) {
  const PrincipalPtr who = WhoCalls(context);
  if (who == nullptr || who->sessions == 0) return std::make_shared<int>();
  std::shared_ptr<int> seats;
  {
    base::MutexLock lock(mutex_);
    std::weak_ptr<int>& kept = seats_[who->name];
    seats = kept.lock();
    if (seats == nullptr) kept = seats = std::make_shared<int>();
    if (seats.use_count() <= static_cast<long>(who->sessions)) return seats;
  }
  *status = Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.sessions",
                   absl::StrCat("PrefixCache.Attach by ", who->name, ": it has ", who->sessions,
                                " sessions, its most (the access file's sessions)"));
  return nullptr;
}

std::string Gate::Describe(const grpc::ServerContextBase& context) {
  const std::optional<base::Peer> peer = UnixPeer(context.peer());
  std::string what;
  if (has_file()) {
    what = See(context).what;
  } else {
    what = peer.has_value() ? absl::StrCat("user ", peer->uid) : "the token";
  }
  if (peer.has_value()) return absl::StrCat(what, " (", base::Describe(*peer), ")");
  return absl::StrCat(what, " (", AddressOf(context.peer()), ")");
}

}  // namespace prefixd::daemon
