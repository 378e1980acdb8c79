// How much smaller a space's formats are than the elements that they were made of.
//
// Pure function, thread-safe.
#pragma once
#include <string>
#include <vector>

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

struct FormatRatio {
  std::string format;  // "mlx_affine/8/64/f16"
  double ratio = 1;    // raw bytes of a token over its payload, all layers: 1.88
};
// A rung of the ladder each, finest first; of groups without tokens nothing counts. Raw elements
// have the type of the data, 16 bits where the format does not say: ggml's and block floats. Empty
// for an identity that cannot be.
std::vector<FormatRatio> Compression(const v1::SpaceIdentity& identity);

}  // namespace prefixd::cli
