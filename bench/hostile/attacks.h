// What a hostile client sends, again and again: the worst legal requests of each verb at the size
// limits, and what takes memory, threads or room from others. One attack a process
// (client.cc), or one request alone, timed (hostile.cc).
//
// One thread each. An error is the daemon's refusal, which is right; nothing here checks it.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "bench/common/page_source.h"
#include "bench/common/raw_session.h"

namespace prefixd::bench {

// A session of its own with a space of tiny pages open.
class Attacker {
 public:
  static absl::StatusOr<std::unique_ptr<Attacker>> Start(const std::string& address, uint64_t seed);

  RawSession& session() { return *session_; }
  const std::string& address() const { return address_; }
  const PageSource& source() const { return source_; }
  uint64_t space() const { return space_; }
  uint64_t Next() { return ++next_; }  // a number that no other attacker has
  absl::StatusOr<std::unique_ptr<RawSession>> OpenSession(uint64_t staging_bytes = 0) const;

  std::vector<std::unique_ptr<RawSession>> kept;  // of an attack, between its rounds

 private:
  Attacker(const std::string& address, uint64_t seed);
  const std::string address_;
  const PageSource source_;
  uint64_t next_;
  std::unique_ptr<RawSession> session_;
  uint64_t space_ = 0;
};

// The attacked daemon runs with this RAM budget, which sets its limits of requests.
inline constexpr uint64_t kAttackedRamBytes = uint64_t{256} << 20;

struct Attack {
  const char* name;
  absl::Status (*once)(Attacker& attacker);
};
std::span<const Attack> Attacks();

// One request whose work should grow with its size and no faster: `share` of its limit, 0 to 1.
struct SizedRequest {
  const char* name;
  absl::Status (*prepare)(Attacker& attacker, double share);  // nullptr: nothing
  absl::Status (*send)(Attacker& attacker, double share);
};
std::span<const SizedRequest> SizedRequests();

}  // namespace prefixd::bench
