// The gate before every call on the workers' socket and on TCP: who calls, and may they?
//
// Without an access file: callers on TCP must send the token, callers on the unix socket nothing.
// With one: everybody must be in the file (principals.h), which is read again at the first call
// after it changed. A file that cannot be used keeps the last good one. Refusals are counted by
// reason and logged, at most one a second.
//
// A session is bound to the tenant that its caller had when it attached: nobody else may name it.
// Where a call is looked at twice and the caller is gone between, it is refused.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "block/ids.h"
#include "cache/cache.h"
#include "daemon/access/audit_log.h"
#include "daemon/access/bound_sessions.h"
#include "daemon/access/principals.h"
#include "daemon/access/usage.h"
#include "daemon/token.h"

namespace prefixd::daemon {

class Gate {
 public:
  // `cache` counts and must outlive this. `access_file`: path; empty = none.
  Gate(cache::Cache* cache, std::optional<Token> token, std::string access_file)
      : cache_(cache), token_(token), path_(std::move(access_file)) {}

  // Reads the access file. InvalidArgument names it, and the line or entry that is wrong. `audit`
  // gets a line of each refusal of somebody whom the file names.
  absl::Status Open(std::shared_ptr<AuditLog> audit) PREFIXD_EXCLUDES(mutex_);
  bool has_file() const { return !path_.empty(); }
  // Sets what ends a session, whose worker hears `status`. Call it before anybody calls.
  using EndSession = std::function<void(block::SessionId, const grpc::Status& status)>;
  void set_end_session(EndSession end) { end_session_ = std::move(end); }

  // Who may pass.
  struct Admission {
    // OK; UNAUTHENTICATED (who are you?) or PERMISSION_DENIED (you may not), with who calls, what
    // was seen and what is needed; RESOURCE_EXHAUSTED beyond the caller's rate.
    grpc::Status status;
    PrincipalPtr who;    // null without an access file
    std::string tenant;  // of the caller's spaces
    bool ok() const { return status.ok(); }
    // Spaces of all tenants are the caller's to see.
    bool sees_all() const { return who != nullptr && who->all(); }
  };
  // `verb`: a line of RoleTable().
  Admission Check(const grpc::ServerContextBase& context, std::string_view verb)
      PREFIXD_EXCLUDES(mutex_);

  // One of a principal's sessions, from before it begins until it is over.
  class Seat {
   public:
    Seat(Gate* gate, BoundSessions::Owner owner, Usage::Hold hold)
        : gate_(gate), owner_(std::move(owner)), hold_(std::move(hold)) {}
    ~Seat();
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    // From now on only callers of the principal's tenant may name the session. Called once.
    void Bind(block::SessionId session);
    // Charges the principal for the pages of a lease, as long as the result lives. Null: it has no
    // limit. RESOURCE_EXHAUSTED names the limit and what is in use.
    absl::StatusOr<std::shared_ptr<void>> ChargeLease(uint64_t bytes) const;

   private:
    Gate* const gate_;
    const BoundSessions::Owner owner_;
    const Usage::Hold hold_;
    block::SessionId session_;
  };
  // Returns a seat among the caller's sessions. Null without an access file. RESOURCE_EXHAUSTED:
  // all are taken. This must outlive it.
  absl::StatusOr<std::shared_ptr<Seat>> TakeSeat(const Admission& caller);
  // Charges the caller for a stream of pages, as long as the result lives; null: no limit.
  // RESOURCE_EXHAUSTED as above. `verb`: for the message.
  absl::StatusOr<std::shared_ptr<void>> TakeStream(const Admission& caller, std::string_view verb,
                                                   uint64_t bytes);
  // Ends the stream when the access file does not have its caller any more, as long as the result
  // lives; null without an access file. `context` must outlive the result, and this too.
  std::shared_ptr<void> Follow(const Admission& caller, grpc::ServerContextBase* context)
      PREFIXD_EXCLUDES(mutex_);
  // Returns OK if the caller may name the session: it is of the caller's tenant. NOT_FOUND: nobody
  // attached it. UNAUTHENTICATED and PERMISSION_DENIED as Check. Looks again, since a long message
  // is served later than it came.
  absl::Status CheckSession(const grpc::ServerContextBase& context, block::SessionId session)
      PREFIXD_EXCLUDES(mutex_);
  // Returns the tenant of the spaces that the session opens. NOT_FOUND as above.
  absl::StatusOr<std::string> TenantOf(const grpc::ServerContextBase& context,
                                       block::SessionId session) const;

  // Returns true if a worker that maps the arena would see other tenants' pages: the file named
  // several, in any version since the start.
  bool has_tenants() const PREFIXD_EXCLUDES(mutex_);
  // Reads an access file. InvalidArgument names it, and the line or entry that is wrong.
  static absl::StatusOr<Principals> ReadFile(const std::string& path);

  // Counts, logs and returns a refusal of what a caller may call, but not of this.
  // PERMISSION_DENIED. `reason`: its counter, a literal.
  grpc::Status Deny(const char* reason, const std::string& why) PREFIXD_EXCLUDES(mutex_) {
    return Refuse(grpc::StatusCode::PERMISSION_DENIED, reason, why);
  }
  // Counts and logs a connection that TLS refused, before anybody could call.
  void NoteTlsRefusal(const std::string& why) PREFIXD_EXCLUDES(mutex_);

  struct Caller {
    std::string name;  // "token vllm-1", "certificate x", "user 1000", or what it showed
    std::string from;  // "ipv4:10.0.0.7:51514", "process 12 of user 1000"
  };
  Caller Describe(const grpc::ServerContextBase& context) const PREFIXD_EXCLUDES(mutex_);
  // The same of somebody whom no gate looks at: on the admin socket.
  static Caller DescribePeer(const grpc::ServerContextBase& context);

 private:
  struct Mark {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Mark&) const = default;
  };
  struct Rate {
    double tokens = 0;
    std::chrono::steady_clock::time_point at;
  };
  struct Seen {
    PrincipalPtr who;
    std::string what;         // that it showed: "wrong token", "user 1000"
    const char* reason = "";  // of a refusal, as counted
  };

  Mark MarkOfFile() const;
  bool IsAsRead(const Mark& mark) const PREFIXD_EXCLUDES(mutex_);
  void ReadAgainIfChanged() PREFIXD_EXCLUDES(mutex_);
  void ReadAgain(const Mark& mark) PREFIXD_EXCLUDES(mutex_);
  // Ends the sessions of principals that the file does not have any more.
  void EndLostSessions() PREFIXD_EXCLUDES(mutex_);
  void EndLostStreams() PREFIXD_EXCLUDES(mutex_);
  bool MayTakeOver(const Principals& read) const PREFIXD_EXCLUDES(mutex_);
  void Use(Principals read) PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<const Principals> principals() const PREFIXD_EXCLUDES(mutex_);
  Admission CheckWithoutFile(const grpc::ServerContextBase& context) PREFIXD_EXCLUDES(mutex_);
  // See looks at the file as it was last read.
  Seen See(const grpc::ServerContextBase& context) const PREFIXD_EXCLUDES(mutex_);
  Seen SeeOnTcp(const Principals& principals, const grpc::ServerContextBase& context) const;
  grpc::Status RefuseStranger(const Seen& seen, const std::string& caller);
  bool WithinRate(const Principal& who) PREFIXD_EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<void>> ChargeLease(const BoundSessions::Owner& owner,
                                                    uint64_t bytes);
  grpc::Status Refuse(grpc::StatusCode code, const char* reason, const std::string& why)
      PREFIXD_EXCLUDES(mutex_);
  // The same, with a line in the audit log unless the verb has one anyway.
  grpc::Status RefuseKnown(const Principal& who, std::string_view verb, grpc::StatusCode code,
                           const char* reason, const std::string& why) PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  const std::optional<Token> token_;
  const std::string path_;
  std::shared_ptr<AuditLog> audit_;  // set by Open
  EndSession end_session_;
  BoundSessions sessions_;
  Usage usage_;
  // One thread at a time reads the file again; taken before mutex_.
  base::Mutex reading_{"Gate::reading_"};
  mutable base::Mutex mutex_;
  std::shared_ptr<const Principals> principals_ PREFIXD_GUARDED_BY(mutex_);
  Mark mark_ PREFIXD_GUARDED_BY(mutex_);
  std::set<std::string> tenants_ PREFIXD_GUARDED_BY(mutex_);      // of all versions of the file
  std::map<std::string, Rate> rates_ PREFIXD_GUARDED_BY(mutex_);  // by name
  // Streams that Follow looks after, with their callers.
  std::map<grpc::ServerContextBase*, BoundSessions::Owner> streams_ PREFIXD_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point logged_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t unlogged_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::daemon
