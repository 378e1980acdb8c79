// The commands of a bundle, made beforehand, on a plain socket: what redis-benchmark does, with
// HMGET and HSET in place of GET and SET. It checks how answers begin, and nothing else.
//
// One thread a socket; the functions are pure.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/remote/bundles.h"
#include "bench/remote/loopback.h"

namespace prefixd::bench {

// Reads stripes of these lengths into `to`, with what stands between them, over and over.
bool RawLoad(const LoopbackSocket& socket, const std::string& key,
             const std::vector<size_t>& stripe_bytes, std::span<std::byte> to);
// Returns what an answer of such stripes takes.
size_t RawAnswerBytes(const std::vector<size_t>& stripe_bytes);

// Everything of HSET that follows the key.
std::string RawFields(const remote::SealedBundle& bundle);
bool RawStore(const LoopbackSocket& socket, const std::string& key, size_t stripes,
              const std::string& fields);

}  // namespace prefixd::bench
