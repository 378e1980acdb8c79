// What reads bytes that somebody else wrote: each target takes any bytes, and must read or refuse
// them. A broken promise aborts, with what was seen on stderr.
//
// The same targets run with seeded mutations in fuzz_test and under libFuzzer (scripts/fuzz).
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace prefixd::fuzz {

using Bytes = std::span<const std::byte>;

struct Target {
  const char* name;
  void (*run)(Bytes input);
  std::vector<std::string> (*seeds)();  // valid inputs, to begin from
};

// records       a block's record on SSD, as it is and with its checksum put right
// identities    an encoded space identity
// markers       the last entry of a segment
// requests      a message of the wire, first byte: which, and all checks before the cache
// traces        a header traceparent or tracestate
// arena_tables  changes to header, slots, space table and records of an arena that is then opened
// safetensors   a checkpoint's file
// llama_states  llama.cpp's state of a sequence: what is read comes back as it was read
// gguf          the metadata of a GGUF file
// prompt_caches a file of mlx-lm's caches, each made into rows and back
// bundles       a bundle's record, as it is and with its length, checksum and seal put right
// replies       what a Redis server says, first byte: the pieces in which it comes
const std::vector<Target>& Targets();

// The same, apart by what they need: a libFuzzer program is built with its group alone.
std::vector<Target> StoreTargets();
std::vector<Target> WireTargets();
std::vector<Target> ArenaTargets();
std::vector<Target> InteropTargets();
std::vector<Target> BundleTargets();
std::vector<Target> RemoteTargets();

}  // namespace prefixd::fuzz
