#include "space_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "wire/identity.h"

namespace prefixd::client {

SpaceState::SpaceState(block::SpaceIdentity identity)
    : identity_(std::move(identity)),
      payload_bytes_per_token_(block::PayloadBytesPerToken(identity_)) {
  for (uint32_t group = 0; group < groups().size(); ++group) {
    kinds_.push_back(groups()[group].kind);
    formats_ = std::max(formats_, static_cast<uint32_t>(groups()[group].ladder.size()));
    regular_ = regular_ && kinds_.back() == block::LayerKind::kFull;
    const std::vector<uint32_t>& members = groups()[group].layers;
    for (uint32_t index = 0; index < members.size(); ++index) {
      layers_.resize(std::max<size_t>(layers_.size(), members[index] + size_t{1}));
      layers_[members[index]] = {.group = group, .index = index};
    }
  }
  for (const block::SharedLayer& shared : identity_.shared_layers) {
    layers_.resize(std::max<size_t>(layers_.size(), shared.layer + size_t{1}));
  }
  owners_.resize(layers_.size());
  std::iota(owners_.begin(), owners_.end(), 0);
  for (const block::SharedLayer& shared : identity_.shared_layers) {
    owners_[shared.layer] = shared.reads;
    layers_[shared.layer] = layers_[shared.reads];
  }
}

absl::Status SpaceState::CheckOwns(const char* caller, uint32_t layer) const {
  if (owner(layer) == layer) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(caller, ": layer ", layer, " reads layer ",
                                                 owner(layer), ", whose keys and values go there"));
}

uint64_t SpaceState::state_bytes(uint32_t group) const {
  return IsState(group) ? groups()[group].state_bytes / groups()[group].layers.size() : 0;
}

bool SpaceState::Reads(uint32_t group, uint32_t tokens, uint32_t begin, uint32_t end) const {
  const block::LayerGroup& layers = groups()[group];
  if (layers.kind != block::LayerKind::kSliding) return begin < tokens;
  const uint32_t first = tokens > layers.window ? tokens - layers.window : 0;
  return begin < tokens && (end > first || begin < layers.sink_tokens);
}

uint32_t SpaceState::block_tokens() const {
  base::MutexLock lock(mutex_);
  if (opened_) return opened_->block_tokens;
  return identity_.block_tokens ? identity_.block_tokens : block::kDefaultBlockTokens;
}

std::string SpaceState::id() const {
  base::MutexLock lock(mutex_);
  return opened_ ? opened_->id : "";
}

absl::StatusOr<OpenedSpace> SpaceState::EnsureOpen(Connection& connection, const Session& session,
                                                   base::Deadline deadline) {
  {
    base::MutexLock lock(mutex_);
    if (opened_ && opened_->session == session && opened_->handle) return *opened_;
  }
  v1::OpenSpaceRequest request;
  request.set_session(session.id);
  *request.mutable_identity() = wire::ToProto(identity_);
  PREFIXD_ASSIGN_OR_RETURN(
      const v1::OpenSpaceReply reply,
      connection.Call(&Connection::Stub::OpenSpace, session, request, deadline));
  switch (reply.block_tokens()) {
    case 16:
    case 32:
    case 64:
    case 128:
      break;
    default:
      return absl::InternalError(absl::StrCat("client: the daemon opened a space of ",
                                              reply.block_tokens(), " block tokens"));
  }
  const OpenedSpace opened{.session = session,
                           .handle = {reply.space()},
                           .block_tokens = reply.block_tokens(),
                           .id = base::ToHex(base::AsBytes(std::string_view(reply.space_id())))};
  base::MutexLock lock(mutex_);
  opened_ = opened;
  return opened;
}

void SpaceState::Forget(block::SpaceHandle handle) {
  base::MutexLock lock(mutex_);
  if (opened_ && opened_->handle == handle) opened_->handle = {};
}

}  // namespace prefixd::client
