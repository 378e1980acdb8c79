// The work list: which thread block attends on which pages of which heads, for sequences of any
// lengths.
//
// Pure functions. One shape has one list, so results have the same bits each time.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "attend_arguments.h"
#include "prefixd/cuda.h"

namespace prefixd::cuda {

struct WorkShape {
  uint32_t kv_heads = 0, group = 0, query_rows = 0;
  uint32_t segment_columns = kColumns;
  uint32_t window = 0, sink_tokens = 0;
  bool latent = false;  // the values are in the keys
  std::vector<PairGeometry> formats;
  // Entry f names the kernel (1, 2, ...) that attends on pages of format f; 0: the generic one.
  // List i is kernel i's.
  std::vector<uint8_t> kernel_of_format;
};
// How many thread blocks a kernel's list is cut for, and how many pages one works on at a time.
struct WorkGrid {
  uint32_t blocks = 0;
  uint32_t pages_at_once = 1;
};

struct WorkList {
  struct Share {
    std::vector<WorkItem> items;
    std::vector<uint32_t> firsts;  // of grid.blocks + 1
  };
  std::vector<DevicePage> pages;
  std::vector<Segment> segments;
  std::vector<Share> shares;  // of each kernel
  uint32_t parts = 0;  // that wait for others; those of whole segments have numbers behind them
  uint32_t most_page_tokens = 0;
};

// Refuses sequences that are impossible: too few tokens, a block that is seen and has no units.
absl::StatusOr<WorkList> MakeWorkList(const WorkShape& shape, const std::vector<WorkGrid>& grids,
                                      const prefixd_cuda_sequence* sequences, uint32_t count);

// Pages of which the prefill kernel gets tiles. A page that stands in the list more than once, for
// sequences that share it, has its tiles once.
struct TileList {
  std::vector<uint32_t> pages;  // of the list, each once
  uint32_t tiles = 0;
};
// Gives the pages for which `wanted` holds their tiles.
TileList GiveTiles(const std::function<bool(const DevicePage&)>& wanted,
                   std::vector<DevicePage>* pages);

}  // namespace prefixd::cuda
