// Models that this process serves without sharing their caches, and why. Tells each to the daemon
// at once, or as soon as there is one, and to every later daemon.
//
// Thread-safe. No caller waits for another's call. A call takes at most 200 ms; none is made while
// detached.
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

  // Both run on the attaching thread. Begin() tells everything to the new session; after End()
  // nothing is told.
  void Begin(const Session& session) PREFIXD_EXCLUDES(mutex_);
  void End() PREFIXD_EXCLUDES(mutex_);

  // Notes what the engine says; an empty reason takes it back. Both texts are cut to what the
  // daemon takes. InvalidArgument without a model, ResourceExhausted beyond 16 models.
  absl::Status Say(const std::string& model, const std::string& reason) PREFIXD_EXCLUDES(mutex_);
  // Notes that a space of the model was refused with this sentence or, if `sentence` is empty, that
  // one opened. What the engine said takes precedence.
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
  // Tells the untold notes one by one, unless another thread is doing so. A note that did not
  // arrive waits for the next call or the next session.
  void TellAll() PREFIXD_EXCLUDES(mutex_);
  // Returns the next untold note. nullopt if there is none; this thread is then done telling.
  std::optional<Telling> NextTelling() PREFIXD_EXCLUDES(mutex_);
  // Marks `failed` as untold. Returns false if there is another session by now: go on telling. Else
  // this thread is done telling.
  bool TryLater(const Telling& failed) PREFIXD_EXCLUDES(mutex_);

  const std::shared_ptr<Connection> connection_;
  base::Mutex mutex_;  // guards what follows
  std::optional<Session> session_ PREFIXD_GUARDED_BY(mutex_);
  std::map<std::string, Note> notes_ PREFIXD_GUARDED_BY(mutex_);  // by model
  bool telling_ PREFIXD_GUARDED_BY(mutex_) = false;  // a thread is telling; one at a time
};

}  // namespace prefixd::client
