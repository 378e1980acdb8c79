// A space as the client knows it: its identity, and its handle in the current session.
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

// The place of a model layer.
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
  // Requires: `identity` comes from IdentityOf().
  explicit SpaceState(block::SpaceIdentity identity);

  const std::vector<block::LayerGroup>& groups() const { return identity_.groups; }
  const std::vector<LayerPlace>& layers() const { return layers_; }
  uint32_t formats() const { return formats_; }  // of the layer that has the most
  // Returns the layer whose keys and values `layer` attends on: itself, or the one that it shares.
  uint32_t owner(uint32_t layer) const { return owners_[layer]; }
  // InvalidArgument, in the name of `caller`, if the layer's keys and values are another layer's.
  absl::Status CheckOwns(const char* caller, uint32_t layer) const;
  // Whether all groups are of kind kFull: then if a position can be restored, every earlier one can
  // be, too.
  bool regular() const { return regular_; }
  const std::vector<block::LayerKind>& kinds() const { return kinds_; }  // of the groups
  bool IsState(uint32_t group) const { return kinds_[group] == block::LayerKind::kState; }
  // State bytes of one layer of the group; 0 if it keeps no state.
  uint64_t state_bytes(uint32_t group) const;
  // Whether attention at `tokens` or later reads tokens [begin, end) in the group.
  bool Reads(uint32_t group, uint32_t tokens, uint32_t begin, uint32_t end) const;
  uint64_t payload_bytes_per_token() const { return payload_bytes_per_token_; }
  // Returns what the daemon said, once the space was open; before that what the identity says, or
  // the default.
  uint32_t block_tokens() const PREFIXD_EXCLUDES(mutex_);
  std::string id() const PREFIXD_EXCLUDES(mutex_);  // hex; empty until the space was open once

  // Returns the handle under `session`; opens the space if it is not open yet.
  absl::StatusOr<OpenedSpace> EnsureOpen(Connection& connection, const Session& session,
                                         base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Drops the handle, which the daemon does not know any more: the next EnsureOpen() opens the
  // space again.
  void Forget(block::SpaceHandle handle) PREFIXD_EXCLUDES(mutex_);

 private:
  const block::SpaceIdentity identity_;  // block_tokens may be 0, which the daemon fills in
  std::vector<LayerPlace> layers_;       // this and the next ones: constant after construction
  std::vector<uint32_t> owners_;         // of each layer
  std::vector<block::LayerKind> kinds_;
  bool regular_ = true;
  uint32_t formats_ = 0;
  uint64_t payload_bytes_per_token_ = 0;

  mutable base::Mutex mutex_;  // guards what follows
  std::optional<OpenedSpace> opened_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
