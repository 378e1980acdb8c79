#include "remote/converse.h"

#include "remote/wait.h"

namespace prefixd::remote {
namespace {

void Advance(Talk* talk) {
  const absl::Status status = talk->connection->Advance();
  Reply reply;
  while (talk->replies.size() < talk->questions && talk->connection->TakeReply(&reply)) {
    talk->replies.push_back(std::move(reply));
  }
  talk->done = !status.ok() || talk->replies.size() == talk->questions;
  if (talk->replies.size() == talk->questions) {
    talk->status = absl::OkStatus();
  } else if (!status.ok()) {
    talk->status = status;
  }
}

}  // namespace

void Converse(std::span<Talk> talks, base::Deadline deadline, int stop_fd, bool first_is_enough) {
  for (;;) {
    std::vector<pollfd> fds = {{.fd = stop_fd, .events = POLLIN, .revents = 0}};
    for (Talk& talk : talks) {
      if (!talk.done) Advance(&talk);
      if (talk.done && talk.status.ok() && first_is_enough) return;
      if (!talk.done) {
        fds.push_back(
            {.fd = talk.connection->fd(), .events = talk.connection->events(), .revents = 0});
      }
    }
    if (fds.size() == 1 || std::chrono::steady_clock::now() >= deadline) return;
    PollUntil(fds, deadline);
    if (fds[0].revents != 0) return;
  }
}

}  // namespace prefixd::remote
