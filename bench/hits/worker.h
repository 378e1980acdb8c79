// What the processes of `hits` have in common: one stored prefix, and who acquires it how.
#pragma once
#include <cstdint>

#include "nlohmann/json.hpp"

#include "bench/common/stored_sequences.h"
#include "prefixd/client.h"

namespace prefixd::bench {

// 4 KiB a token in elements of 16 bits: pages of 136 KiB.
const Geometry& HitsGeometry();

// Stores what the cache lacks of `tokens`. Every element of a token is its number by 64.
Status StoreRows(Space& space, std::span<const uint32_t> tokens);
// Whether the last block of `lease` has what StoreRows() stored.
bool HasStoredRows(Lease& lease, uint32_t tokens, uint32_t block_tokens);

}  // namespace prefixd::bench
