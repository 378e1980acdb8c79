// Direct calls to the daemon (wire/direct.h), beside gRPC.
#pragma once
#include <google/protobuf/message_lite.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "base/descriptor.h"
#include "base/mutex.h"
#include "os/messages.h"
#include "wire/direct.h"

namespace prefixd::client {

// Thread-safe.
class DirectChannel {
 public:
  // `socket`: the connection over which the session's files came.
  explicit DirectChannel(base::Descriptor socket);
  ~DirectChannel();
  DirectChannel(const DirectChannel&) = delete;
  DirectChannel& operator=(const DirectChannel&) = delete;

  // Makes a call and waits for its answer. Returns nullopt, with nothing done, if the call has to
  // go by gRPC: another one is being made or its answer is late, the request is long, the daemon
  // hung up or asks for it, or this is a child of the process that made the channel.
  // DeadlineExceeded and Unavailable: the daemon may have done it.
  std::optional<absl::Status> Call(wire::DirectVerb verb,
                                   const google::protobuf::MessageLite& request,
                                   base::Deadline deadline, google::protobuf::MessageLite* reply)
      PREFIXD_EXCLUDES(mutex_);

 private:
  std::optional<absl::Status> CallAlone(wire::DirectVerb verb,
                                        const google::protobuf::MessageLite& request,
                                        base::Deadline deadline,
                                        google::protobuf::MessageLite* reply)
      PREFIXD_REQUIRES(mutex_);
  enum class Got { kAnswer, kTimeout, kEnd };
  bool Send(wire::DirectVerb verb, const google::protobuf::MessageLite& request,
            base::Deadline deadline) PREFIXD_REQUIRES(mutex_);
  // Receives the rest of the answer to the last call: `head_` and `answer_`.
  Got Receive(base::Deadline deadline) PREFIXD_REQUIRES(mutex_);
  // Adds a message to the answer. Returns false if it is no part of one.
  bool Take(std::string_view message) PREFIXD_REQUIRES(mutex_);

  base::Mutex mutex_;  // held by the thread that makes a call
  const pid_t process_;
  base::Descriptor socket_;  // open in process_ alone: a child may have another file of its number
  os::MessageReader reader_ PREFIXD_GUARDED_BY(mutex_);
  std::string request_ PREFIXD_GUARDED_BY(mutex_);
  wire::DirectAnswer head_ PREFIXD_GUARDED_BY(mutex_);
  std::string answer_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t calls_ PREFIXD_GUARDED_BY(mutex_) = 0;  // made
  uint64_t heard_ PREFIXD_GUARDED_BY(mutex_) = 0;  // the last one whose answer was used
  bool waits_ PREFIXD_GUARDED_BY(mutex_) = false;  // an answer is on its way
  bool has_head_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool broken_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::client
