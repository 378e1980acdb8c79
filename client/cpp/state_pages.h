// Snapshots of a sequence's recurrent layers, layer by layer put together to the pages of their
// groups.
//
// Not thread-safe. A snapshot that is whole never changes.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "own_pages.h"
#include "space_state.h"
#include "staging_memory.h"

namespace prefixd::client {

// The group of `layer` when it keeps a state of so many bytes. InvalidArgument, in the name of
// `caller`, when there is no such layer, or it keeps another.
absl::StatusOr<LayerPlace> StateLayer(const char* caller, const SpaceState& space, int layer,
                                      size_t bytes);

class StatePages {
 public:
  explicit StatePages(std::shared_ptr<const SpaceState> space);

  // Where pages begun from now on stand; null = the heap.
  void UseStaging(std::shared_ptr<StagingMemory> staging) { staging_ = std::move(staging); }
  // Again for the same layer and position: nothing changes. Requires: StateLayer() gave `place`.
  absl::Status Put(LayerPlace place, uint32_t tokens, std::span<const std::byte> state);
  // The whole ones after `begin` up to `end` tokens, ascending.
  std::vector<OwnPages::State> Whole(uint32_t begin, uint32_t end) const;
  // Forgets those of up to `tokens`.
  void Drop(uint32_t tokens);
  void Clear() { snapshots_.clear(); }

 private:
  struct Snapshot {
    std::vector<PageMemory> pages;          // [group]
    std::vector<std::vector<bool>> filled;  // [group][layer of it]
    size_t missing = 0;                     // layers
  };
  Snapshot Begin() const;

  const std::shared_ptr<const SpaceState> space_;
  std::shared_ptr<StagingMemory> staging_;
  std::map<uint32_t, Snapshot> snapshots_;  // by position
};

}  // namespace prefixd::client
