// One hostile client: a process that attacks until it is told to stop.
#include <sys/resource.h>

#include <algorithm>

#include "bench/common/child_roles.h"
#include "bench/common/partner.h"
#include "bench/common/timing.h"
#include "bench/hostile/attacks.h"

namespace prefixd::bench {

int RunHostileClient(const nlohmann::json& plan) {
  // What is measured is what prefixd does with these requests, not which client the kernel gives a
  // core to: the others' processes yield.
  setpriority(PRIO_PROCESS, 0, 19);
  const Attack& attack = Attacks()[plan.at("attack").get<size_t>()];
  std::unique_ptr<Attacker> attacker;
  uint64_t rounds = 0, refused = 0;
  double slowest_us = 0;
  std::string last_error;
  while (!ParentWaits()) {
    if (attacker == nullptr) {  // the daemon may refuse it for a while: others attack too
      auto started = Attacker::Start(plan.at("address"), plan.at("seed"));
      if (started.ok()) attacker = *std::move(started);
      if (!started.ok()) last_error = started.status().ToString();
      continue;
    }
    const double start = NowMicros();
    const absl::Status status = attack.once(*attacker);
    slowest_us = std::max(slowest_us, NowMicros() - start);
    ++rounds;
    if (status.ok()) continue;
    ++refused;
    last_error = status.ToString();
    if (absl::IsNotFound(status)) attacker.reset();  // its session was ended
  }
  TellParent({{"rounds", rounds},
              {"refused", refused},
              {"slowest_us", slowest_us},
              {"last_error", last_error}});
  return 0;
}

}  // namespace prefixd::bench
