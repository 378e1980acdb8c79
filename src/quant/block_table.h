// What an attention kernel walks: for each KV block of one layer, where its units are, how many
// tokens they hold and what the bytes mean. The public header defines an entry; here a unit is
// LayoutOfUnit().unit_bytes long.
#pragma once
#include <span>

#include "prefixd/block_table.h"
#include "quant/format.h"

namespace prefixd::quant {

using prefixd::BlockTableEntry;
using BlockTable = std::span<const BlockTableEntry>;

}  // namespace prefixd::quant
