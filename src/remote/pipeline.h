// Sends calls to the servers that have their keys, and follows where these redirect them.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "remote/cluster.h"
#include "remote/resp.h"

namespace prefixd::remote {

// One command for one key, and what came of it.
struct Call {
  Call(std::string key, Command command) : key(std::move(key)), command(std::move(command)) {}

  std::string key;
  Command command;
  std::span<const Runs> into{};  // not empty: the reply is a list that goes straight there
  uint64_t bytes = 0;            // on their way, beside small ones
  // OK with `reply`; NotFound or DataLoss of ReplyReader::ReadInto; ResourceExhausted: the server
  // is full; PermissionDenied; Unavailable: no server has the slot now, or it is given up or
  // failed; DeadlineExceeded.
  absl::Status status;
  Reply reply{};
};

// Thread-safe.
class Pipeline {
 public:
  static constexpr int kMostRedirections = 4;

  // `gate`: for all servers together.
  Pipeline(Cluster* cluster, Gate* gate) : cluster_(cluster), gate_(gate) {}

  // Returns when every call has its status, by the deadline.
  void Run(std::span<Call* const> calls, base::Deadline deadline);

 private:
  struct Target {
    NodePtr node;
    bool asking = false;  // the slot is on its way there
    auto operator<=>(const Target&) const = default;
  };
  using Groups = std::map<Target, std::vector<Call*>>;
  class Exchange;

  // Sends each group and reads its replies. Returns those that were redirected.
  Groups Exchanges(const Groups& groups, base::Deadline deadline);
  // Reads the error of a server. True: `target` says where to ask again.
  bool Redirected(Call* call, Target* target);

  Cluster* const cluster_;
  Gate* const gate_;
};

}  // namespace prefixd::remote
