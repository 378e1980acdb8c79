// Models that this process serves without sharing their caches, and why. The daemon is told of each
// now, or as soon as there is one, and every further one after it.
//
// Thread-safe. Nobody waits for another's call; a call takes at most 200 ms, none while detached.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "connection.h"

namespace prefixd::client {

class NotShared {
 public:
  explicit NotShared(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  // On the attaching thread: tells everything to the new session; nothing after its end.
  void Begin(const Session& session) PREFIXD_EXCLUDES(mutex_);
  void End() PREFIXD_EXCLUDES(mutex_);

  // What the engine says; an empty reason takes it back. Both texts are cut to what the daemon
  // takes. InvalidArgument without a model, ResourceExhausted beyond 16 models.
  absl::Status Say(const std::string& model, const std::string& reason) PREFIXD_EXCLUDES(mutex_);
  // A space of the model was refused with this sentence, or opens: then `sentence` is empty. What
  // the engine said stands before it.
  void Refused(const std::string& model, const std::string& sentence) PREFIXD_EXCLUDES(mutex_);

 private:
  struct Note {
    std::string said, refused;
    bool told = true;  // the daemon knows reason()
    const std::string& reason() const { return said.empty() ? refused : said; }
  };
  absl::Status Put(const std::string& model, const std::string& reason, std::string Note::*part)
      PREFIXD_EXCLUDES(mutex_);
  // A note on its way to the daemon.
  struct Telling {
    Session session{};
    v1::NotSharedRequest request{};
  };
  // Tells what is untold, one by one, unless another thread is at it. What did not arrive waits
  // for the next call or the next session.
  void TellAll() PREFIXD_EXCLUDES(mutex_);
  // None: everything was told, this thread is at it no more.
  std::optional<Telling> NextTelling() PREFIXD_EXCLUDES(mutex_);
  // False: there is another session now, go on. Else this thread is at it no more.
  bool TryLater(const Telling& failed) PREFIXD_EXCLUDES(mutex_);

  const std::shared_ptr<Connection> connection_;
  base::Mutex mutex_;  // guards what follows
  std::optional<Session> session_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, Note> notes_ PREFIXD_GUARDED_BY(mutex_);  // by model
  bool telling_ PREFIXD_GUARDED_BY(mutex_) = false;               // by one thread at a time
};

}  // namespace prefixd::client
