#include "daemon/access/gate.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/bytes.h"
#include "base/status.h"
#include "daemon/listen_address.h"
#include "daemon/stream_limit.h"
#include "daemon/unix_listener.h"
#include "daemon/whole_file.h"
#include "os/files.h"
#include "os/sockets.h"
#include "wire/bearer.h"

namespace prefixd::daemon {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<gid_t> GroupsOf(int socket) {
  const std::optional<os::SocketPeer> peer = os::PeerOf(socket);
  if (!peer.has_value()) return {};
  std::vector<gid_t> groups = os::GroupsOfPeer(socket, 1 << 10);
  groups.push_back(peer->gid);
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

// A caller of all tenants has the spaces of callers without an access file.
std::string TenantOfSpaces(const Principal& who, const grpc::ServerContextBase& context) {
  return who.all() ? daemon::TenantOf(AddressOf(context.peer())) : who.tenant;
}

// The start of what a caller sent, for messages.
std::string Shown(const std::string& text) { return absl::CHexEscape(text.substr(0, 64)); }

}  // namespace

Gate::Mark Gate::MarkOfFile() const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) return {};
  const timespec written = os::WrittenAt(info);
  return {static_cast<uint64_t>(info.st_dev), info.st_ino, static_cast<uint64_t>(info.st_size),
          written.tv_sec, written.tv_nsec};
}

absl::StatusOr<Principals> Gate::ReadFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("access: ", text.status().message()));
  }
  absl::StatusOr<Principals> read = Principals::Parse(*text);
  if (read.ok()) return read;
  return absl::InvalidArgumentError(
      absl::StrCat("access: ", path, ": ", std::string(read.status().message())));
}

absl::Status Gate::Open(std::shared_ptr<AuditLog> audit) {
  audit_ = std::move(audit);
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
  {
    base::MutexLock one(reading_);
    const Mark mark = MarkOfFile();
    if (IsAsRead(mark)) return;
    ReadAgain(mark);
  }
  EndLostSessions();
  EndLostStreams();
}

void Gate::ReadAgain(const Mark& mark) {
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

void Gate::EndLostSessions() {
  for (const auto& [session, owner] : sessions_.Lost(*principals(), absl::Now())) {
    cache_->Count("access.sessions_ended");
    audit_->Write(absl::StrCat("a session of ", owner.name, " of tenant ", owner.tenant,
                               " ended: the access file does not have it any more"));
    end_session_(session, {grpc::StatusCode::ABORTED,
                           absl::StrCat("attach: the access file does not have ", owner.name,
                                        " of tenant ", owner.tenant, " any more")});
  }
}

void Gate::EndLostStreams() {
  const std::shared_ptr<const Principals> principals = this->principals();
  base::MutexLock lock(mutex_);
  for (const auto& [context, owner] : streams_) {
    if (principals->Find(owner.name, owner.tenant, absl::Now()) != nullptr) continue;
    EndStream(context, {grpc::StatusCode::UNAUTHENTICATED,
                        absl::StrCat("the access file does not have ", owner.name, " of tenant ",
                                     owner.tenant, " any more")});
  }
}

std::shared_ptr<void> Gate::Follow(const Admission& caller, grpc::ServerContextBase* context) {
  if (caller.who == nullptr) return nullptr;
  base::MutexLock lock(mutex_);
  streams_[context] = {
      .name = caller.who->name, .tenant = caller.who->tenant, .spaces = caller.tenant};
  return {context, [this](grpc::ServerContextBase* gone) {
            base::MutexLock lock_again(mutex_);
            streams_.erase(gone);
          }};
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

Gate::Seen Gate::See(const grpc::ServerContextBase& context) const {
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

grpc::Status Gate::RefuseKnown(const Principal& who, std::string_view verb, grpc::StatusCode code,
                               const char* reason, const std::string& why) {
  if (!IsAudited(verb)) audit_->WriteRefusal(who.name, reason, absl::StrCat("refused: ", why));
  return Refuse(code, reason, why);
}

grpc::Status Gate::RefuseStranger(const Seen& seen, const std::string& caller) {
  return Refuse(grpc::StatusCode::UNAUTHENTICATED, seen.reason,
                absl::StrCat(caller,
                             ": the access file must name the caller by a token "
                             "($PREFIXD_TOKEN_FILE), certificate or user"));
}

Gate::Admission Gate::CheckWithoutFile(const grpc::ServerContextBase& context) {
  Admission admission{
      .status = {}, .who = nullptr, .tenant = daemon::TenantOf(AddressOf(context.peer()))};
  if (DescriptorOf(context.peer()).has_value()) return admission;
  admission.status = CheckToken(token_.has_value() ? &*token_ : nullptr, context);
  if (admission.ok()) return admission;
  admission.status = Refuse(admission.status.error_code(),
                            BearerOf(context).empty() ? "refused.no_token" : "refused.wrong_token",
                            admission.status.error_message());
  return admission;
}

Gate::Admission Gate::Check(const grpc::ServerContextBase& context, std::string_view verb) {
  if (!has_file()) return CheckWithoutFile(context);
  ReadAgainIfChanged();
  const Seen seen = See(context);
  const auto caller = [&] {
    return absl::StrCat(std::string(verb), " from ", AddressOf(context.peer()), " by ", seen.what);
  };
  if (seen.who == nullptr) return {RefuseStranger(seen, caller()), nullptr, ""};
  const Principal& who = *seen.who;
  const std::string missing = WhatIsMissing(verb, who.role, who.all());
  if (!missing.empty()) {
    return {RefuseKnown(who, verb, grpc::StatusCode::PERMISSION_DENIED, "refused.role",
                        absl::StrCat(caller(), ", ", NameOf(who.role), " of tenant ", who.tenant,
                                     ": it wants ", missing)),
            nullptr, ""};
  }
  if (!WithinRate(who)) {
    return {RefuseKnown(who, verb, grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.rate",
                        absl::StrCat(caller(), ": more than ", who.requests_per_s,
                                     " requests a second (the access file's requests_per_s)")),
            nullptr, ""};
  }
  return {grpc::Status::OK, seen.who, TenantOfSpaces(who, context)};
}

absl::StatusOr<std::shared_ptr<Gate::Seat>> Gate::TakeSeat(const Admission& caller) {
  if (caller.who == nullptr) return nullptr;
  const Principal& who = *caller.who;
  Usage::Taken taken = usage_.Take(Usage::Kind::kSessions, who.name, 1, who.sessions);
  if (taken.hold == nullptr) {
    const grpc::Status refused = RefuseKnown(
        who, "PrefixCache.Attach", grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.sessions",
        absl::StrCat("PrefixCache.Attach by ", who.name, ": it has ", taken.in_use,
                     " sessions, at most ", who.sessions, " (the access file's sessions)"));
    return absl::ResourceExhaustedError(refused.error_message());
  }
  return std::make_shared<Seat>(
      this, BoundSessions::Owner{.name = who.name, .tenant = who.tenant, .spaces = caller.tenant},
      std::move(taken.hold));
}

Gate::Seat::~Seat() {
  if (session_) gate_->sessions_.Unbind(session_);
}

void Gate::Seat::Bind(block::SessionId session) {
  session_ = session;
  gate_->sessions_.Bind(session, owner_);
}

absl::StatusOr<std::shared_ptr<void>> Gate::Seat::ChargeLease(uint64_t bytes) const {
  return gate_->ChargeLease(owner_, bytes);
}

// The file as it is now decides: a limit that changed holds for the next lease.
absl::StatusOr<std::shared_ptr<void>> Gate::ChargeLease(const BoundSessions::Owner& owner,
                                                        uint64_t bytes) {
  const PrincipalPtr who = principals()->Find(owner.name, owner.tenant, absl::Now());
  if (who == nullptr) {
    return absl::PermissionDeniedError(absl::StrCat("lease: the access file does not have ",
                                                    owner.name, " of tenant ", owner.tenant,
                                                    " any more"));
  }
  // Counted without a limit too: one that is set later knows what is in use.
  Usage::Taken taken = usage_.Take(Usage::Kind::kLeaseBytes, who->name, bytes, who->lease_bytes);
  if (taken.hold != nullptr) return taken.hold;
  const grpc::Status refused = RefuseKnown(
      *who, "PrefixCache.Acquire", grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.lease_bytes",
      absl::StrCat("lease of ", bytes, " bytes by ", who->name, ": its leases hold ", taken.in_use,
                   " bytes, at most ", who->lease_bytes, " (the access file's lease_bytes)"));
  return absl::ResourceExhaustedError(refused.error_message());
}

absl::StatusOr<std::shared_ptr<void>> Gate::TakeStream(const Admission& caller,
                                                       std::string_view verb, uint64_t bytes) {
  if (caller.who == nullptr) return nullptr;
  const Principal& who = *caller.who;
  Usage::Taken taken =
      usage_.Take(Usage::Kind::kBytesInFlight, who.name, bytes, who.bytes_in_flight);
  if (taken.hold != nullptr) return taken.hold;
  const grpc::Status refused = RefuseKnown(
      who, verb, grpc::StatusCode::RESOURCE_EXHAUSTED, "refused.in_flight",
      absl::StrCat(std::string(verb), " by ", who.name, ": its streams have ", taken.in_use,
                   " bytes in flight and this one takes ", bytes, ", at most ", who.bytes_in_flight,
                   " (the access file's bytes_in_flight)"));
  return absl::ResourceExhaustedError(refused.error_message());
}

absl::Status Gate::CheckSession(const grpc::ServerContextBase& context, block::SessionId session) {
  if (!has_file()) return absl::OkStatus();
  const Seen seen = See(context);
  if (seen.who == nullptr) {
    return absl::UnauthenticatedError(
        RefuseStranger(seen, absl::StrCat("a request of a session from ", AddressOf(context.peer()),
                                          " by ", seen.what))
            .error_message());
  }
  const std::optional<BoundSessions::Owner> owner = sessions_.Find(session);
  if (!owner.has_value()) return absl::NotFoundError("session: unknown session, attach first");
  if (owner->tenant == seen.who->tenant && owner->spaces == TenantOfSpaces(*seen.who, context)) {
    return absl::OkStatus();
  }
  const std::string why =
      absl::StrCat("session: a request by ", seen.what, " of tenant ", seen.who->tenant,
                   ", the session is of tenant ", owner->tenant, "; attach again");
  RefuseKnown(*seen.who, "", grpc::StatusCode::PERMISSION_DENIED, "refused.tenant", why);
  return absl::PermissionDeniedError(why);
}

absl::StatusOr<std::string> Gate::TenantOf(const grpc::ServerContextBase& context,
                                           block::SessionId session) const {
  if (!has_file()) return daemon::TenantOf(AddressOf(context.peer()));
  const std::optional<BoundSessions::Owner> owner = sessions_.Find(session);
  if (owner.has_value()) return owner->spaces;
  return absl::NotFoundError("open_space: unknown session, attach first");
}

Gate::Caller Gate::DescribePeer(const grpc::ServerContextBase& context) {
  const std::optional<base::Peer> peer = UnixPeer(context.peer());
  if (!peer.has_value()) return {"the token", AddressOf(context.peer())};
  return {absl::StrCat("user ", peer->uid), base::Describe(*peer)};
}

Gate::Caller Gate::Describe(const grpc::ServerContextBase& context) const {
  Caller caller = DescribePeer(context);
  if (has_file()) caller.name = See(context).what;
  return caller;
}

}  // namespace prefixd::daemon
