// The space table of a shared arena: identities one behind the other, and free room between them
// where a space was forgotten (block/arena_file.h, SpaceRecord).
//
// Not thread-safe: guarded by the arena's mutex. A space is named by its place: the offset of its
// record, in units of 8 bytes. After it is forgotten another space may stand there, but under a
// generation that no space of this table had before.
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
  // Gives the first `bytes` of the table memory. Returns an error if there is none.
  using Back = std::function<absl::Status(uint64_t bytes)>;

  SpaceTable(std::byte* base, uint64_t bytes) : base_(base), bytes_(bytes) {}
  SpaceTable(const SpaceTable&) = delete;
  SpaceTable& operator=(const SpaceTable&) = delete;

  // Reads what an earlier daemon left. Call it once, first. What stands behind a damaged record is
  // lost.
  absl::Status Adopt(const Back& back);
  // Returns the place of the space; adds the space if it is not there. ResourceExhausted if the
  // table is full; also returns errors of `back`.
  absl::StatusOr<uint32_t> Add(const block::SpaceId& id, const std::string& identity,
                               const Back& back);
  // Removes the space at `place`; does nothing if there is none.
  void Remove(uint32_t place);
  // Gives the space a new generation, so that page records that name the present one are void.
  void Clear(uint32_t place);

  // Returns nullptr if there is no space at `place`.
  const block::SpaceRecord* At(uint32_t place) const;
  std::string IdentityOf(uint32_t place) const;  // encoded. Requires: a space is there
  // Places by id.
  const std::map<block::SpaceId, uint32_t>& places() const { return by_id_; }
  // Bytes that must have memory: up to the end of the record that ends the table.
  uint64_t needed_bytes() const { return used_ + sizeof(block::SpaceRecord); }
  uint64_t spaces() const { return by_id_.size(); }

 private:
  block::SpaceRecord* RecordAt(uint64_t offset) const {
    return reinterpret_cast<block::SpaceRecord*>(base_ + offset);
  }
  // Takes the smallest free room of at least `need` bytes. Cuts off the rest unless that is less
  // than a record. Returns false if there is none.
  bool TakeFree(uint64_t need, uint64_t* offset, uint64_t* room);
  absl::Status Append(uint64_t need, const Back& back, uint64_t* offset);
  void AddFree(uint64_t offset, uint64_t room);
  void EndAt(uint64_t offset);  // ends the table there

  std::byte* const base_;
  const uint64_t bytes_;
  uint64_t used_ = 0;                  // where the record stands that ends the table
  uint32_t last_generation_ = 0;       // the highest that any space has
  std::map<uint64_t, uint64_t> free_;  // room by offset; no two are adjacent
  std::set<std::pair<uint64_t, uint64_t>> free_by_room_;
  std::map<block::SpaceId, uint32_t> by_id_;
};

}  // namespace prefixd::ram
