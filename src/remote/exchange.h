// What one call asks: commands scattered over servers and gathered on the caller's thread.
#pragma once
#include <poll.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "remote/cluster.h"
#include "remote/resp.h"

namespace prefixd::remote {

// One command and what became of it.
struct Ask {
  uint16_t slot = 0;
  Commands command;
  std::span<const Runs> into;  // of the reply's bulk strings
  uint64_t bytes = 0;          // that are on their way because of it

  enum class Outcome {
    kPending,
    kReplied,  // `reply` may be an error that concerns this command alone
    kDown,     // its server is given up, or failed
    kLate,
  };
  Outcome outcome = Outcome::kPending;
  Reply reply;
  std::string why;     // kDown, kLate
  std::string server;  // that answered or failed

  // The exchange alone uses these.
  std::shared_ptr<Node> node;  // null: as the topology says
  bool asking = false;
  int turns = 0;
};

// Not thread-safe; each call has its own.
class Exchange {
 public:
  static constexpr int kMostTurns = 5;  // for one command: redirections and repetitions

  Exchange(Cluster* cluster, std::span<Ask> asks, base::Deadline deadline)
      : cluster_(cluster),
        asks_(asks),
        deadline_(deadline),
        begun_(std::chrono::steady_clock::now()) {}
  // Settles all; returns by the deadline. After that nothing writes to what was given.
  void Run();

 private:
  // Commands to one server, on a connection of their own.
  struct Flight {
    std::shared_ptr<Node> node;
    std::deque<Ask*> asks;  // not answered, in order; null: an ASKING
    std::unique_ptr<Shares::Share> share;
    std::unique_ptr<Connection> connection;  // null: it waits for its share
    base::Deadline begun;
    bool unwell = false;  // the server answered that it cannot serve
  };
  struct Delayed {
    base::Deadline until;
    Ask* ask;
  };

  void Route(Ask* ask);
  void Launch();
  bool LaunchOne();  // false: all that is ready waits for a flight to its server
  void Begin(Flight* flight);
  void Advance(Flight* flight);  // done: its asks are empty
  void Take(Flight* flight, Ask* ask, Reply reply);
  void Redirect(Flight* flight, Ask* ask, const Reply& reply);
  void Fail(Flight* flight, const std::string& why);
  void Finish(Flight* flight);
  void GiveUpLate();
  void WakeDelayed(base::Deadline now);
  void Poll();
  static void Settle(Ask* ask, Ask::Outcome outcome, const std::string& why);

  Cluster* const cluster_;
  const std::span<Ask> asks_;
  const base::Deadline deadline_, begun_;
  std::shared_ptr<const Topology> topology_;
  std::map<std::shared_ptr<Node>, std::deque<Ask*>> ready_;
  std::list<Flight> flights_;
  std::vector<Delayed> delayed_;
};

}  // namespace prefixd::remote
