// Computes how much smaller a space's formats are than the elements that they were made of.
//
// Pure function, thread-safe.
#pragma once
#include <string>
#include <vector>

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

struct FormatRatio {
  std::string format;  // "mlx_affine/8/64/f16"
  double ratio = 1;    // a token's raw bytes / its payload bytes, over all layers: 1.88
};
// Returns one entry for each rung of the ladder, finest first. Groups that keep no tokens do not
// count. Raw elements have the data type that the format names, or 16 bits if it names none (ggml's
// formats, block floats). Returns nothing for an invalid identity.
std::vector<FormatRatio> Compression(const v1::SpaceIdentity& identity);

}  // namespace prefixd::cli
