// A space as the client knows it: its identity, and its handle under the session of the day.
//
// Thread-safe.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "attachment.h"
#include "base/mutex.h"
#include "block/ids.h"
#include "block/space_identity.h"
#include "connection.h"

namespace prefixd::client {

// Where a model layer stands.
struct LayerPlace {
  uint32_t group = 0;
  uint32_t index = 0;  // inside the group
};

struct OpenedSpace {
  Session session{};
  block::SpaceHandle handle;
  uint32_t block_tokens = 0;
  std::string id;  // hex
};

class SpaceState {
 public:
  // Requires: an identity that IdentityOf gave.
  explicit SpaceState(block::SpaceIdentity identity);

  const std::vector<block::LayerGroup>& groups() const { return identity_.groups; }
  const std::vector<LayerPlace>& layers() const { return layers_; }
  uint32_t formats() const { return formats_; }  // of the layer that has most
  // The layer whose keys and values it attends on: itself, or the one that it shares.
  uint32_t owner(uint32_t layer) const { return owners_[layer]; }
  // In another layer's place: InvalidArgument, in the name of `caller`.
  absl::Status CheckOwns(const char* caller, uint32_t layer) const;
  // All groups are of kind kFull: what holds at some position holds at every one before.
  bool regular() const { return regular_; }
  const std::vector<block::LayerKind>& kinds() const { return kinds_; }  // of the groups
  bool IsState(uint32_t group) const { return kinds_[group] == block::LayerKind::kState; }
  // Of one layer of the group; 0: it keeps none.
  uint64_t state_bytes(uint32_t group) const;
  // Whether attention at `tokens` or later reads tokens [begin, end) in the group.
  bool Reads(uint32_t group, uint32_t tokens, uint32_t begin, uint32_t end) const;
  uint64_t payload_bytes_per_token() const { return payload_bytes_per_token_; }
  // The daemon's, when it was open once; before that what the identity says or the default.
  uint32_t block_tokens() const PREFIXD_EXCLUDES(mutex_);
  std::string id() const PREFIXD_EXCLUDES(mutex_);  // hex; empty until it was open once

  // The handle under `session`, opened now if it is not open yet.
  absl::StatusOr<OpenedSpace> EnsureOpen(Connection& connection, const Session& session,
                                         base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // The daemon no longer knows the handle: the next EnsureOpen() opens again.
  void Forget(block::SpaceHandle handle) PREFIXD_EXCLUDES(mutex_);

 private:
  const block::SpaceIdentity identity_;  // block_tokens may be 0: the daemon's to fill
  std::vector<LayerPlace> layers_;       // constant after construction, as what follows
  std::vector<uint32_t> owners_;         // of each layer
  std::vector<block::LayerKind> kinds_;
  bool regular_ = true;
  uint32_t formats_ = 0;
  uint64_t payload_bytes_per_token_ = 0;

  mutable base::Mutex mutex_;  // guards what follows
  std::optional<OpenedSpace> opened_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
