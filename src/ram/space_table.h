// The space table of a shared arena: identities one behind the other, and free room between them
// where a space was forgotten (block/arena_file.h, SpaceRecord).
//
// Not thread-safe: guarded by the arena's mutex. A space is named by its place, which is where its
// record stands, in units of 8 bytes; another one may stand there after it is forgotten, but under
// a generation that no space of this table had before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "block/arena_file.h"
#include "block/ids.h"
#include "block/page_check.h"

namespace prefixd::ram {

class SpaceTable {
 public:
  // Gives the first so many bytes of the table memory. An error: there is none.
  using Back = std::function<absl::Status(uint64_t bytes)>;

  SpaceTable(std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  SpaceTable(const SpaceTable&) = delete;
  SpaceTable& operator=(const SpaceTable&) = delete;

  // Once, first: what an earlier daemon left. What stands behind a damaged record is lost.
  absl::Status Adopt(const Back& back);
  // Its place; the same for one that is there. ResourceExhausted: the table is full, or `back`'s.
  absl::StatusOr<uint32_t> Add(const block::SpaceId& id, const std::string& identity,
                               const Back& back);
  // Nothing when there is none at that place.
  void Remove(uint32_t place);
  // Records of pages that name its present generation are void.
  void Clear(uint32_t place);

  // nullptr when there is none at that place.
  const block::SpaceRecord* At(uint32_t place) const;
  std::string IdentityOf(uint32_t place) const;  // encoded. Requires: there is one
  // In no order: place, by id.
  const std::map<block::SpaceId, uint32_t>& places() const { return by_id_; }
  // What must have memory: up to behind the record that ends the table.
  uint64_t needed_bytes() const { return used_ + sizeof(block::SpaceRecord); }
  uint64_t spaces() const { return by_id_.size(); }

 private:
  block::SpaceRecord* RecordAt(uint64_t offset) const {
    return reinterpret_cast<block::SpaceRecord*>(base_ + offset);
  }
  // A free record of at least `need` bytes becomes one of at most a record's size more.
  bool TakeFree(uint64_t need, uint64_t* offset, uint64_t* room);
  absl::Status Append(uint64_t need, const Back& back, uint64_t* offset);
  void AddFree(uint64_t offset, uint64_t room);
  void EndAt(uint64_t offset);  // the table ends there

  std::byte* const base_;
  const uint64_t bytes_;
  uint64_t used_ = 0;                  // where the record stands that ends it
  uint32_t last_generation_ = 0;       // the highest that any space has
  std::map<uint64_t, uint64_t> free_;  // room by offset; no two touch
  std::set<std::pair<uint64_t, uint64_t>> free_by_room_;
  std::map<block::SpaceId, uint32_t> by_id_;
};

}  // namespace prefixd::ram
