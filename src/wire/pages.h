// Page columns: where leased pages are, one column a group, filled in one pass.
//
// Pure functions. WriteColumns and ToProto are the daemon's side; ReadColumns and ExpandTable the
// client's, which trusts no length.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "block/answer.h"
#include "block/layer_group.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// Requires: `pages` are group by group, in position order. A group whose offsets are all unknown
// gets no offset column. A group is `ready` if every page of it is in RAM.
void WriteColumns(const std::vector<block::LeasedPage>& pages,
                  google::protobuf::RepeatedPtrField<v1::GroupPages>* columns);

void ToProto(const block::PageTable& table, v1::PageTable* proto);

// What columns describe: blocks [first_block, end) of a sequence.
struct Columns {
  uint32_t block_tokens = 0;  // > 0
  uint32_t first_block = 0;
  uint32_t tokens = 0;                           // covered tokens of the sequence, from 0 on
  std::span<const block::LayerKind> kinds = {};  // of the space's groups; none: all are kFull
};
// Appends the pages of one group. DataLoss for columns of other lengths than the blocks, a page
// with fewer slots than tokens, a group or rung out of range. Pages of a group that is ready are
// in_ram. A kSliding group may lack blocks; a kState group has one page, at the end.
absl::Status ReadColumns(const v1::GroupPages& proto, const Columns& columns,
                         std::vector<block::LeasedPage>* pages);

// Expands a table to columns: one for each of its groups, ready. DataLoss for a table of another
// size than the blocks, or with more groups than there can be. The caller checks the columns like
// any others.
absl::Status ExpandTable(const v1::PageTable& table, const Columns& columns,
                         google::protobuf::RepeatedPtrField<v1::GroupPages>* pages);

}  // namespace prefixd::wire
