#include "cache/tables/spaces.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::cache {
namespace {

constexpr size_t kRecentSpaces = 16, kNearestLooks = 64;
// About what the cache's tables, and the copies that sessions have, take for one.
constexpr uint64_t kSpaceBytes = 1024;

// An identity as a value is about four times its encoding.
uint64_t CostOf(const std::string& encoded) { return kSpaceBytes + 4 * encoded.size(); }

index::SpaceShape ShapeOf(const block::SpaceIdentity& identity, const block::SpaceId& id) {
  index::SpaceShape shape{.id = id, .block_tokens = identity.block_tokens, .rungs = {}};
  for (const block::LayerGroup& group : identity.groups) {
    shape.rungs.push_back(static_cast<uint32_t>(group.ladder.size()));
    shape.rules.push_back(
        {.kind = group.kind, .window = group.window, .sink_tokens = group.sink_tokens});
  }
  return shape;
}

// "layer 4", or "layer 4 and the 3 that are kept with it".
std::string NameOf(const block::LayerGroup& group) {
  const size_t others = group.layers.size() - 1;
  return absl::StrCat(
      "layer ", group.layers.front(),
      others == 0 ? "" : absl::StrCat(" and the ", others, " that are kept with it"));
}

}  // namespace

Spaces::Spaces(Context* context, Worth* worth)
    : context_(context), worth_(worth), mutex_(&context->longest_hold) {}

absl::Status Spaces::CheckServable(const block::SpaceIdentity& identity) const {
  if (!context_->options.trust_model_names && identity.weights_digest == base::Digest256{}) {
    return absl::InvalidArgumentError(
        "open_space: the identity has no weights_digest; two checkpoints of one name would share "
        "bytes. Send the digest, "
        "or start prefixd with --trust-model-names");
  }
  for (const block::LayerGroup& group : identity.groups) {
    const bool state = group.kind == block::LayerKind::kState;
    for (uint32_t rung = 0; rung < (state ? 1 : group.ladder.size()); ++rung) {
      const uint64_t bytes = block::LayoutOfPage(group, rung, identity.block_tokens).page_bytes;
      if (context_->arena->ExtentBytes(bytes, bytes) == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("open_space: a ", state ? "snapshot" : "page", " of ", NameOf(group),
                         " has ", bytes, " bytes, a slab of the RAM tier ",
                         context_->arena->stats().slab_bytes, "; raise --ram"));
      }
    }
  }
  return absl::OkStatus();
}

SpacePtr Spaces::Add(const block::SpaceIdentity& identity, bool* created) {
  const std::string encoded = block::Encode(identity);
  const block::SpaceId id = block::IdOf(identity);
  *created = false;
  if (SpacePtr known = Find(id)) return known;
  base::MutexLock adding(adding_mutex_);
  if (SpacePtr known = Find(id)) return known;  // another opener was faster
  index::SpaceShape shape = ShapeOf(identity, id);
  auto space = std::make_shared<SpaceInfo>();
  space->regular = std::ranges::all_of(
      shape.rules, [](const auto& rule) { return rule.kind == block::LayerKind::kFull; });
  space->id = id;
  space->identity = identity;
  space->hasher = context_->hasher;
  space->memory_bytes = shape.owner_bytes = CostOf(encoded);
  space->handle = context_->index->AddSpace(shape);
  absl::StatusOr<uint32_t> ordinal = context_->arena->AddSpace(id, encoded);
  if (ordinal.ok()) {
    space->ordinal = *ordinal;
  } else {
    context_->counters.Add("spaces.not_recorded");
    context_->Log(LogLevel::kWarning,
                  absl::StrCat("pages of a new space will not survive a crash: ",
                               std::string(ordinal.status().message())));
  }
  known_bytes_ += space->memory_bytes;
  *created = true;
  base::MutexLock lock(mutex_);
  by_id_[id] = space;
  return space;
}

void Spaces::AddEarlier(const block::SpaceIdentity& identity, bool saved) {
  bool created = false;
  const SpacePtr space = Add(identity, &created);
  if (saved) space->saved = true;
}

uint64_t Spaces::MemoryWith(const block::SpaceIdentity& identity) const {
  return known_bytes_ + CostOf(block::Encode(identity));
}

SpacePtr Spaces::Find(const block::SpaceId& id) const {
  base::MutexLock lock(mutex_);
  auto known = by_id_.find(id);
  return known == by_id_.end() ? nullptr : known->second;
}

absl::StatusOr<SpacePtr> Spaces::Find(const Session& session, block::SpaceHandle handle) const {
  base::MutexLock lock(mutex_);
  if (const auto open = session.spaces.find(handle); open != session.spaces.end()) {
    open->second.used = ++uses_;
    return open->second.space;
  }
  return absl::NotFoundError(
      absl::StrCat("space: ", handle.value, " is not open in this session, open it first"));
}

bool Spaces::IsOpen(const Session& session, block::SpaceHandle handle) const {
  base::MutexLock lock(mutex_);
  return session.spaces.contains(handle);
}

std::vector<SpacePtr> Spaces::All() const {
  std::vector<SpacePtr> all;
  base::MutexLock lock(mutex_);
  for (const auto& [id, space] : by_id_) all.push_back(space);
  return all;
}

std::vector<block::SpaceSummary> Spaces::List() const {
  std::vector<block::SpaceSummary> summaries;
  for (const SpacePtr& space : All()) {
    block::SpaceSummary summary{
        .handle = space->handle, .id = space->id, .identity = space->identity, .limits = {}};
    context_->index->Summarize(&summary);
    summary.tokens = space->tokens.Get();
    summaries.push_back(std::move(summary));
  }
  return summaries;
}

// Users' salts make spaces that differ in the salt alone: the one before is as near as any.
void Spaces::FindNearest(const SpaceInfo& space, OpenedSpace* opened) const {
  std::vector<SpacePtr> others;
  {
    base::MutexLock lock(mutex_);
    for (const auto& recent : recent_) {
      if (SpacePtr other = recent.lock()) others.push_back(std::move(other));
    }
    for (const auto& [id, other] : by_id_) {
      if (others.size() >= kNearestLooks) break;
      others.push_back(other);
    }
  }
  size_t fewest = ~size_t{0};
  for (const SpacePtr& other : others) {
    if (other->id == space.id || other->identity.tenant != space.identity.tenant) continue;
    std::vector<std::string> fields = block::DifferingFields(space.identity, other->identity);
    if (fields.size() >= fewest) continue;
    fewest = fields.size();
    opened->nearest_model = other->identity.model;
    opened->differing_fields = std::move(fields);
    if (fewest == 1) return;
  }
}

absl::StatusOr<OpenedSpace> Spaces::Open(const SessionPtr& session,
                                         const block::SpaceIdentity& identity) {
  PREFIXD_RETURN_IF_ERROR(CheckServable(identity));
  OpenedSpace opened;
  if (Find(block::IdOf(identity)) == nullptr) {
    PREFIXD_RETURN_IF_ERROR(MakeRoom(session, CostOf(block::Encode(identity))));
  }
  SpacePtr space = Add(identity, &opened.created);
  opened.space = space->handle;
  opened.id = space->id;
  opened.block_tokens = identity.block_tokens;
  {
    base::MutexLock lock(mutex_);
    Session::OpenSpace& open = session->spaces[space->handle];
    if (open.space == nullptr) session->spaces_bytes += space->memory_bytes;
    open = {.space = space, .used = ++uses_};
  }
  if (!opened.created) return opened;
  FindNearest(*space, &opened);
  base::MutexLock lock(mutex_);
  recent_.push_front(space);
  if (recent_.size() > kRecentSpaces) recent_.pop_back();
  return opened;
}

}  // namespace prefixd::cache
