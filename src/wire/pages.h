// Page columns: where leased pages are, one column a group, filled in one pass.
//
// Pure functions. ToProto is the daemon's side, ReadColumns the client's, which trusts no length.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "block/answer.h"
#include "block/layer_group.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// Requires of `pages`: group by group, in position order. A group whose offsets are all unknown has
// no offset column; `ready` when every page of it is in RAM.
void WriteColumns(const std::vector<block::LeasedPage>& pages,
                  google::protobuf::RepeatedPtrField<v1::GroupPages>* columns);

void ToProto(const block::PageTable& table, v1::PageTable* proto);

// What columns describe: blocks [first_block, end) of a sequence.
struct Columns {
  uint32_t block_tokens = 0;  // > 0
  uint32_t first_block = 0;
  uint32_t tokens = 0;                           // of the sequence that are covered, from 0 on
  std::span<const block::LayerKind> kinds = {};  // of the space's groups; none: all are kFull
};
// Appends the pages of one group. DataLoss for columns of other lengths than the blocks, a page
// with fewer slots than tokens, a group or rung out of range. Pages of a group that is ready are
// in_ram. Of a kSliding group blocks may be absent, a kState group has one page, at the end.
absl::Status ReadColumns(const v1::GroupPages& proto, const Columns& columns,
                         std::vector<block::LeasedPage>* pages);

// A table as columns: one for each of its groups, ready. DataLoss for a table of another size than
// the blocks, or more groups than there can be. What the columns say is checked like any others.
absl::Status ExpandTable(const v1::PageTable& table, const Columns& columns,
                         google::protobuf::RepeatedPtrField<v1::GroupPages>* pages);

}  // namespace prefixd::wire
