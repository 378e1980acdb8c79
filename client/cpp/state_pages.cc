#include "state_pages.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace prefixd::client {

absl::StatusOr<LayerPlace> StateLayer(const char* caller, const SpaceState& space, int layer,
                                      size_t bytes) {
  if (layer < 0 || static_cast<size_t>(layer) >= space.layers().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(caller, ": layer ", layer, ", the space has ", space.layers().size()));
  }
  const LayerPlace place = space.layers()[static_cast<size_t>(layer)];
  const uint64_t wanted = space.state_bytes(place.group);
  if (wanted == bytes && wanted > 0) return place;
  return absl::InvalidArgumentError(absl::StrCat(caller, ": layer ", layer, " keeps a state of ",
                                                 wanted, " bytes, ", bytes, " were given"));
}

StatePages::StatePages(std::shared_ptr<const SpaceState> space) : space_(std::move(space)) {}

StatePages::Snapshot StatePages::Begin() const {
  Snapshot snapshot;
  for (uint32_t group = 0; group < space_->groups().size(); ++group) {
    const size_t layers =
        space_->state_bytes(group) > 0 ? space_->groups()[group].layers.size() : 0;
    snapshot.pages.emplace_back();
    snapshot.filled.emplace_back(layers, false);
    snapshot.missing += layers;
  }
  return snapshot;
}

absl::Status StatePages::Put(LayerPlace place, uint32_t tokens, std::span<const std::byte> state) {
  const auto [at, is_new] = snapshots_.try_emplace(tokens);
  Snapshot& snapshot = at->second;
  if (is_new) snapshot = Begin();
  if (snapshot.filled[place.group][place.index]) return absl::OkStatus();
  PageMemory& page = snapshot.pages[place.group];
  if (!page) page = AllocatePage(staging_.get(), space_->groups()[place.group].state_bytes);
  if (!page) return absl::ResourceExhaustedError("put_state: no memory for a snapshot");
  std::memcpy(page.get() + place.index * state.size(), state.data(), state.size());
  snapshot.filled[place.group][place.index] = true;
  --snapshot.missing;
  return absl::OkStatus();
}

std::vector<OwnPages::State> StatePages::Whole(uint32_t begin, uint32_t end) const {
  std::vector<OwnPages::State> whole;
  for (auto at = snapshots_.upper_bound(begin); at != snapshots_.end() && at->first <= end; ++at) {
    if (at->second.missing == 0) whole.push_back({.tokens = at->first, .pages = at->second.pages});
  }
  return whole;
}

void StatePages::Drop(uint32_t tokens) {
  snapshots_.erase(snapshots_.begin(), snapshots_.upper_bound(tokens));
}

}  // namespace prefixd::client
