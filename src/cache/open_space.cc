// OpenSpace: an identity to a handle. What becomes of spaces that are not used: forget_spaces.cc.
#include <algorithm>

#include "base/bytes.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

constexpr size_t kRecentSpaces = 16, kNearestLooks = 64;
// In the cache's tables and the copies that sessions have of its place: about.
constexpr uint64_t kSpaceBytes = 1024;

// An identity as a value is about four times its encoding.
uint64_t CostOf(const std::string& encoded) { return kSpaceBytes + 4 * encoded.size(); }

}  // namespace

absl::Status Core::CheckServable(const block::SpaceIdentity& identity) const {
  if (!options.trust_model_names && identity.weights_digest == base::Digest256{}) {
    return absl::InvalidArgumentError(
        "open_space: the identity has no weights_digest; two checkpoints of one name would share "
        "bytes. Send the digest, "
        "or start prefixd with --trust-model-names");
  }
  for (size_t g = 0; g < identity.groups.size(); ++g) {
    const block::LayerGroup& group = identity.groups[g];
    const bool state = group.kind == block::LayerKind::kState;
    for (uint32_t rung = 0; rung < (state ? 1 : group.ladder.size()); ++rung) {
      const uint64_t bytes = block::LayoutOfPage(group, rung, identity.block_tokens).page_bytes;
      if (arena->ExtentBytes(bytes, bytes) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("open_space: a ", state ? "snapshot" : "page", " of group ", g, " has ",
                         bytes, " bytes, a slab of the RAM tier ", arena->stats().slab_bytes,
                         "; split the group or raise --ram"));
      }
    }
  }
  return absl::OkStatus();
}

SpacePtr Core::AddSpace(const block::SpaceIdentity& identity, bool* created) {
  const std::string encoded = block::Encode(identity);
  const block::SpaceId id = block::IdOf(identity);
  *created = false;
  if (SpacePtr known = SpaceOf(id)) return known;
  base::MutexLock adding(space_mutex);
  if (SpacePtr known = SpaceOf(id)) return known;  // another opener was faster
  index::SpaceShape shape{.id = id, .block_tokens = identity.block_tokens, .rungs = {}};
  for (const block::LayerGroup& group : identity.groups) {
    shape.rungs.push_back(static_cast<uint32_t>(group.ladder.size()));
    shape.rules.push_back(
        {.kind = group.kind, .window = group.window, .sink_tokens = group.sink_tokens});
  }
  auto space = std::make_shared<SpaceInfo>();
  space->regular = std::ranges::all_of(
      shape.rules, [](const auto& rule) { return rule.kind == block::LayerKind::kFull; });
  space->id = id;
  space->identity = identity;
  space->hasher = hasher;
  space->memory_bytes = shape.owner_bytes = CostOf(encoded);
  space->handle = index->AddSpace(shape);
  absl::StatusOr<uint32_t> ordinal = arena->AddSpace(id, encoded);
  if (ordinal.ok()) {
    space->ordinal = *ordinal;
  } else {
    counters.Add("spaces.not_recorded");
    Log(LogLevel::kWarning, absl::StrCat("pages of a new space will not survive a crash: ",
                                         std::string(ordinal.status().message())));
  }
  known_space_bytes += space->memory_bytes;
  *created = true;
  base::MutexLock lock(mutex);
  spaces_by_id[id] = space;
  spaces[space->handle] = space;
  return space;
}

SpacePtr Core::SpaceOf(const block::SpaceId& id) const {
  base::MutexLock lock(mutex);
  auto known = spaces_by_id.find(id);
  return known == spaces_by_id.end() ? nullptr : known->second;
}

absl::StatusOr<SpacePtr> Core::FindSpace(const Session& session, block::SpaceHandle handle) const {
  base::MutexLock lock(mutex);
  if (const auto open = session.spaces.find(handle); open != session.spaces.end()) {
    open->second.used = ++space_uses;
    return open->second.space;
  }
  return absl::NotFoundError(
      absl::StrCat("space: ", handle.value, " is not open in this session, open it first"));
}

// Users' salts make spaces that differ in that alone: the one before is as near as any.
void Core::FindNearest(const SpaceInfo& space, OpenedSpace* opened) {
  std::vector<SpacePtr> others;
  {
    base::MutexLock lock(mutex);
    for (const auto& recent : recent_spaces) {
      if (SpacePtr other = recent.lock()) others.push_back(std::move(other));
    }
    for (const auto& [id, other] : spaces_by_id) {
      if (others.size() >= kNearestLooks) break;
      others.push_back(other);
    }
  }
  size_t fewest = ~size_t{0};
  for (const SpacePtr& other : others) {
    if (other->id == space.id) continue;
    std::vector<std::string> fields = block::DifferingFields(space.identity, other->identity);
    if (fields.size() >= fewest) continue;
    fewest = fields.size();
    opened->nearest_model = other->identity.model;
    opened->differing_fields = std::move(fields);
    if (fewest == 1) return;
  }
}

absl::StatusOr<OpenedSpace> Cache::OpenSpace(block::SessionId id, block::SpaceIdentity identity) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "open_space"));
  if (identity.block_tokens == 0) identity.block_tokens = core_->options.block_tokens;
  PREFIXD_RETURN_IF_ERROR(block::NormalizeAndValidate(&identity));
  PREFIXD_RETURN_IF_ERROR(core_->CheckServable(identity));
  OpenedSpace opened;
  const block::SpaceId wanted = block::IdOf(identity);
  if (core_->SpaceOf(wanted) == nullptr) {
    PREFIXD_RETURN_IF_ERROR(core_->MakeSpaceRoom(session, CostOf(block::Encode(identity))));
  }
  SpacePtr space = core_->AddSpace(identity, &opened.created);
  opened.space = space->handle;
  opened.id = space->id;
  opened.block_tokens = identity.block_tokens;
  {
    base::MutexLock lock(core_->mutex);
    Session::OpenSpace& open = session->spaces[space->handle];
    if (open.space == nullptr) session->spaces_bytes += space->memory_bytes;
    open = {.space = space, .used = ++core_->space_uses};
  }
  if (!opened.created) return opened;
  core_->FindNearest(*space, &opened);
  base::MutexLock lock(core_->mutex);
  core_->recent_spaces.push_front(space);
  if (core_->recent_spaces.size() > kRecentSpaces) core_->recent_spaces.pop_back();
  return opened;
}

}  // namespace prefixd::cache
