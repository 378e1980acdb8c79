// OpenSpace: an identity to a handle.
#include <algorithm>

#include "base/bytes.h"
#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"

namespace prefixd::cache {
namespace {

std::string MetaKey(const block::SpaceId& id) { return "space/" + base::ToHex(id); }

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
  const block::SpaceId id = block::IdOf(identity);
  {
    base::MutexLock lock(mutex);
    if (auto found = spaces_by_id.find(id); found != spaces_by_id.end()) {
      *created = false;
      return found->second;
    }
  }
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
  space->handle = index->AddSpace(shape);
  absl::StatusOr<uint32_t> ordinal = arena->AddSpace(id, block::Encode(identity));
  if (ordinal.ok()) {
    space->ordinal = *ordinal;
  } else {
    Log(LogLevel::kWarning, absl::StrCat("pages of a new space will not survive a crash: ",
                                         std::string(ordinal.status().message())));
  }
  base::MutexLock lock(mutex);
  auto [place, inserted] = spaces_by_id.emplace(id, space);  // another opener may have been faster
  *created = inserted;
  if (inserted) spaces[space->handle] = space;
  return place->second;
}

absl::Status Core::SaveSpaces() {
  std::vector<SpacePtr> unsaved;
  {
    base::MutexLock lock(mutex);
    unsaved = unsaved_spaces;
  }
  for (const SpacePtr& space : unsaved) {
    PREFIXD_RETURN_IF_ERROR(store->PutMeta(MetaKey(space->id), block::Encode(space->identity)));
    base::MutexLock lock(mutex);
    std::erase(unsaved_spaces, space);
  }
  return absl::OkStatus();
}

SpacePtr Core::SpaceOf(const block::SpaceId& id) const {
  base::MutexLock lock(mutex);
  auto known = spaces_by_id.find(id);
  return known == spaces_by_id.end() ? nullptr : known->second;
}

absl::StatusOr<SpacePtr> Core::FindSpace(const Session* session, block::SpaceHandle handle) const {
  base::MutexLock lock(mutex);
  auto found = spaces.find(handle);
  if (found == spaces.end() || (session != nullptr && !session->spaces.contains(handle))) {
    return absl::NotFoundError(
        absl::StrCat("space: ", handle.value, " is not open in this session, open it first"));
  }
  return found->second;
}

absl::StatusOr<OpenedSpace> Cache::OpenSpace(block::SessionId id, block::SpaceIdentity identity) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "open_space"));
  if (identity.block_tokens == 0) identity.block_tokens = core_->options.block_tokens;
  PREFIXD_RETURN_IF_ERROR(block::NormalizeAndValidate(&identity));
  PREFIXD_RETURN_IF_ERROR(core_->CheckServable(identity));
  OpenedSpace opened;
  SpacePtr space = core_->AddSpace(identity, &opened.created);
  opened.space = space->handle;
  opened.id = space->id;
  opened.block_tokens = identity.block_tokens;
  {
    base::MutexLock lock(core_->mutex);
    session->spaces.insert(space->handle);
  }
  if (!opened.created) return opened;

  if (core_->store != nullptr) {
    {
      base::MutexLock lock(core_->mutex);
      core_->unsaved_spaces.push_back(space);
    }
    if (absl::Status saved = core_->SaveSpaces();
        !saved.ok()) {  // tried again before the first spill
      core_->counters.Add("ssd.write_errors");
      core_->Log(LogLevel::kWarning, absl::StrCat("ssd: cannot save a space's identity: ",
                                                  std::string(saved.message())));
    }
  }
  base::MutexLock lock(core_->mutex);
  size_t fewest = ~size_t{0};
  for (const auto& [known, other] : core_->spaces_by_id) {
    if (known == space->id) continue;
    std::vector<std::string> fields = block::DifferingFields(identity, other->identity);
    if (fields.size() >= fewest) continue;
    fewest = fields.size();
    opened.nearest_model = other->identity.model;
    opened.differing_fields = std::move(fields);
  }
  return opened;
}

absl::StatusOr<Cache::Cleared> Cache::Clear(const block::SpaceId* id) {
  std::vector<SpacePtr> targets;
  {
    base::MutexLock lock(core_->mutex);
    for (const auto& [known, space] : core_->spaces_by_id) {
      if (id == nullptr || known == *id) targets.push_back(space);
    }
  }
  if (id != nullptr && targets.empty()) {
    return absl::NotFoundError(absl::StrCat("clear: no space ", base::ToHex(*id)));
  }
  Cleared cleared;
  for (const SpacePtr& space : targets) {
    // No segment is under way while the border is set: everything written before it is gone,
    // everything after it is new.
    base::MutexLock segment(core_->segment_mutex);
    if (core_->store != nullptr) {
      base::ByteWriter border;
      border.Fixed(core_->store->last_sequence());
      PREFIXD_RETURN_IF_ERROR(
          core_->store->PutMeta("cleared/" + base::ToHex(space->id), border.bytes()));
    }
    base::MutexLock lock(core_->clear_mutex);
    block::SpaceSummary before{.handle = space->handle, .identity = {}, .limits = {}};
    core_->index->Summarize(&before);
    cleared.waiting_ssd_bytes += before.ssd_page_bytes;
    cleared.bytes += core_->index->Clear(space->handle);
    core_->DropPinsOf(*space);
    core_->arena->ClearSpace(space->ordinal);  // a crash does not bring it back
    ++cleared.spaces;
  }
  core_->FreeTaken();
  core_->counters.Add("spaces.cleared", cleared.spaces);
  return cleared;
}

}  // namespace prefixd::cache
