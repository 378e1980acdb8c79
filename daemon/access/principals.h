// The access file: who may call, as which tenant, in which role. JSON:
//
//   {"tokens": [{"name": "vllm-1", "sha256": "HEX64", "tenant": "a", "role": "worker",
//                "expires": "2027-01-01T00:00:00Z", "sessions": 8, "requests_per_s": 1000,
//                "lease_bytes": 34359738368, "bytes_in_flight": 67108864}],
//    "certificates": [{"name": "worker-1.example", "tenant": "a", "role": "worker"}],
//    "unix": [{"name": "ops", "uids": [0], "gids": [27], "tenant": "*", "role": "admin"}]}
//
// `sha256` is of the token's 32 bytes, so the file does not hold what callers send. `expires` and
// the limits (`sessions` and what follows) may be left out: no end, no limit. A certificate's name
// is one of its subject's alternative names or its common name. A tenant "*" has no spaces of its
// own: only an admin may have it. An unknown field is refused: it might have been meant to limit
// somebody.
//
// Thread-safe: constant after construction.
#pragma once
#include <sys/types.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/checksum.h"
#include "block/limits.h"
#include "daemon/access/roles.h"

namespace prefixd::daemon {

inline constexpr char kAllTenants[] = "*";

struct Principal {
  std::string name;
  std::string tenant;
  Role role = Role::kReader;
  absl::Time expires = absl::InfiniteFuture();
  uint64_t sessions = 0;        // at a time; 0 = no limit
  uint64_t requests_per_s = 0;  // 0 = no limit
  // Limits the pages of all its leases; a page in two leases counts twice. 0 = no limit.
  uint64_t lease_bytes = 0;
  // Limits what its streams of pages make the daemon hold at a time. 0 = no limit.
  uint64_t bytes_in_flight = 0;
  bool all() const { return tenant == kAllTenants; }
};
using PrincipalPtr = std::shared_ptr<const Principal>;

// What a stream of pages is charged for: what the daemon may hold of it at a time. A Put: two
// pieces that wait, one that is being stored and one that arrives. A Fetch: one that waits, and one
// that gRPC has taken.
inline constexpr uint64_t kPutBytesInFlight = 4 * block::kMaxPieceBytes;
inline constexpr uint64_t kFetchBytesInFlight = 2 * block::kMaxPieceBytes;

class Principals {
 public:
  // InvalidArgument names the line of bad JSON, or the entry and its field.
  static absl::StatusOr<Principals> Parse(const std::string& text);

  // Null: there is none. Takes a time that does not depend on where the token differs.
  PrincipalPtr OfToken(const base::Digest256& sha256) const;
  PrincipalPtr OfCertificate(const std::string& name) const;
  // The first entry that names the user or one of the groups.
  PrincipalPtr OfUser(uid_t user, const std::vector<gid_t>& groups) const;

  // The first entry of this name and tenant that has not expired at `now`; null: there is none (any
  // more).
  PrincipalPtr Find(const std::string& name, const std::string& tenant, absl::Time now) const;

  const std::set<std::string>& tenants() const { return tenants_; }  // without "*"

  struct Token {
    base::Digest256 sha256;
    PrincipalPtr who;
  };
  struct User {
    std::set<uid_t> users;
    std::set<gid_t> groups;
    PrincipalPtr who;
  };

 private:
  std::vector<Token> tokens_;
  std::vector<PrincipalPtr> certificates_;
  std::vector<User> users_;
  std::vector<PrincipalPtr> all_;
  std::set<std::string> tenants_;
};

}  // namespace prefixd::daemon
