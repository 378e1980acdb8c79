// The gate before every call on the workers' socket and on TCP: who calls, and may they?
//
// Without an access file: callers on TCP must send the token, callers on the unix socket nothing.
// With one: everybody must be in the file (principals.h), which is read again at the first call
// after it changed. A file that cannot be used keeps the last good one. Refusals are counted by
// reason and logged, at most one a second.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"
#include "daemon/access/principals.h"
#include "daemon/token.h"

namespace prefixd::daemon {

class Gate {
 public:
  // `cache` counts and must outlive this. `access_file`: path; empty = none.
  Gate(cache::Cache* cache, std::optional<Token> token, std::string access_file)
      : cache_(cache), token_(token), path_(std::move(access_file)) {}

  // Reads the access file. InvalidArgument names it, and the line or entry that is wrong.
  absl::Status Open() PREFIXD_EXCLUDES(mutex_);
  bool has_file() const { return !path_.empty(); }

  // Returns UNAUTHENTICATED (who are you?) or PERMISSION_DENIED (you may not), with who calls, what
  // was seen and what is needed; RESOURCE_EXHAUSTED beyond the caller's rate. `verb`: a line of
  // RoleTable().
  grpc::Status Check(const grpc::ServerContextBase& context, std::string_view verb)
      PREFIXD_EXCLUDES(mutex_);
  // Returns who calls; null without an access file, and for a caller who is not in it.
  PrincipalPtr WhoCalls(const grpc::ServerContextBase& context) PREFIXD_EXCLUDES(mutex_);
  // Returns the tenant of the caller's spaces.
  std::string TenantOf(const grpc::ServerContextBase& context) PREFIXD_EXCLUDES(mutex_);
  // Returns a seat among the caller's sessions, which it has as long as the seat lives. Null:
  // `status` says that all are taken.
  std::shared_ptr<void> TakeSeat(const grpc::ServerContextBase& context, grpc::Status* status)
      PREFIXD_EXCLUDES(mutex_);
  // Returns true if a worker that maps the arena would see other tenants' pages: the file named
  // several, in any version since the start.
  bool has_tenants() const PREFIXD_EXCLUDES(mutex_);
  // Reads an access file. InvalidArgument names it, and the line or entry that is wrong.
  static absl::StatusOr<Principals> ReadFile(const std::string& path);

  // Counts, logs and returns a refusal of what a caller may call, but not of this.
  // PERMISSION_DENIED.
  // `reason`: its counter, a literal.
  grpc::Status Deny(const char* reason, const std::string& why) PREFIXD_EXCLUDES(mutex_) {
    return Refuse(grpc::StatusCode::PERMISSION_DENIED, reason, why);
  }
  // Counts and logs a connection that TLS refused, before anybody could call.
  void NoteTlsRefusal(const std::string& why) PREFIXD_EXCLUDES(mutex_);
  // Returns "token vllm-1", "certificate x" or "user 1000 (process 12)", and where it calls from.
  std::string Describe(const grpc::ServerContextBase& context) PREFIXD_EXCLUDES(mutex_);

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
  bool MayTakeOver(const Principals& read) const PREFIXD_EXCLUDES(mutex_);
  void Use(Principals read) PREFIXD_EXCLUDES(mutex_);
  std::shared_ptr<const Principals> principals() const PREFIXD_EXCLUDES(mutex_);
  Seen See(const grpc::ServerContextBase& context) PREFIXD_EXCLUDES(mutex_);
  Seen SeeOnTcp(const Principals& principals, const grpc::ServerContextBase& context) const;
  bool WithinRate(const Principal& who) PREFIXD_EXCLUDES(mutex_);
  grpc::Status Refuse(grpc::StatusCode code, const char* reason, const std::string& why)
      PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  const std::optional<Token> token_;
  const std::string path_;
  base::Mutex reading_;  // one thread at a time reads the file again; taken before mutex_
  mutable base::Mutex mutex_;
  std::shared_ptr<const Principals> principals_ PREFIXD_GUARDED_BY(mutex_);
  Mark mark_ PREFIXD_GUARDED_BY(mutex_);
  std::set<std::string> tenants_ PREFIXD_GUARDED_BY(mutex_);      // of all versions of the file
  std::map<std::string, Rate> rates_ PREFIXD_GUARDED_BY(mutex_);  // by name
  std::map<std::string, std::weak_ptr<int>> seats_ PREFIXD_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point logged_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t unlogged_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::daemon
