// A few questions to several servers at once, outside of what callers ask.
//
// Thread-safe: works on what it is given.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "remote/connection.h"

namespace prefixd::remote {

struct Talk {
  std::unique_ptr<Connection> connection;
  size_t questions = 0;        // that were sent on it
  std::vector<Reply> replies;  // one for each, if status is OK
  absl::Status status = absl::DeadlineExceededError("no answer in time");
  bool done = false;  // status is how it ended
};

// Waits until all have answered or failed, or the first has answered if `first_is_enough`; at most
// until the deadline, or until `stop_fd` is readable.
void Converse(std::span<Talk> talks, base::Deadline deadline, int stop_fd,
              bool first_is_enough = false);

}  // namespace prefixd::remote
