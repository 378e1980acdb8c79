// Snapshots of a sequence's recurrent layers, put together layer by layer into the pages of their
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

// Returns the place of `layer` if it keeps a state of `bytes` bytes. InvalidArgument, in the name
// of `caller`, if there is no such layer or its state has another size.
absl::StatusOr<LayerPlace> StateLayer(const char* caller, const SpaceState& space, int layer,
                                      size_t bytes);

class StatePages {
 public:
  explicit StatePages(std::shared_ptr<const SpaceState> space);

  // Puts pages begun from now on into `staging`; null = the heap.
  void UseStaging(std::shared_ptr<StagingMemory> staging) { staging_ = std::move(staging); }
  // Adds a layer's state to the snapshot at `tokens`. A second state of the same layer and position
  // changes nothing. Requires: `place` comes from StateLayer().
  absl::Status Put(LayerPlace place, uint32_t tokens, std::span<const std::byte> state);
  // Returns the whole snapshots at positions in (begin, end], ascending.
  std::vector<OwnPages::State> Whole(uint32_t begin, uint32_t end) const;
  // Forgets the snapshots at positions up to `tokens`.
  void Drop(uint32_t tokens);
  void Clear() { snapshots_.clear(); }

 private:
  struct Snapshot {
    std::vector<PageMemory> pages;          // [group]
    std::vector<std::vector<bool>> filled;  // [group][layer in the group]
    size_t missing = 0;                     // layers that are not filled
  };
  Snapshot Begin() const;

  const std::shared_ptr<const SpaceState> space_;
  std::shared_ptr<StagingMemory> staging_;
  std::map<uint32_t, Snapshot> snapshots_;  // by position
};

}  // namespace prefixd::client
