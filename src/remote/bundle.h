// Bundle format v1: one full block as other hosts find it, sealed with the tenant's key.
//
// Pure functions, thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "block/block_hash.h"
#include "block/layer_group.h"
#include "block/tokens.h"
#include "remote/names.h"
#include "remote/remote_store.h"

namespace prefixd::remote {

enum class Seal : uint8_t {
  kChecks = 0,  // bytes as they are, with XXH3-64: whoever reaches the server can read and forge
  kAes256Gcm = 1,
};

// A page of the block; pages stand in order of group, then rung. A snapshot's rung is its offset in
// the block (index/prefix_index.h).
struct BundlePage {
  uint32_t group = 0;
  uint32_t rung = 0;
  uint64_t page_bytes = 0;
  bool operator==(const BundlePage&) const = default;
};

// What a record says of its bundle.
struct BundleRecord {
  block::SpaceId space{};
  uint64_t generation = 0;
  ChainName name{}, parent{};
  uint32_t first_token = 0;
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  std::vector<uint32_t> ends;  // token counts in the block at which a sequence ended
  std::vector<BundlePage> pages;
};

// A bundle on its way out. `stripes` and `record` are as the store takes them.
struct SealedBundle {
  std::string record;
  std::vector<std::vector<std::byte>> stripes;  // each at most kStripeBytes
};

// Cuts the pages' bytes, one after the other, into stripes and seals all. `pages[i]` has
// record.pages[i].page_bytes bytes, which may change meanwhile: what is sealed is what was read.
SealedBundle SealBundle(const TenantKeys& keys, Seal seal, const BundleRecord& record,
                        std::span<const std::span<const std::byte>> pages);

// A record that was read and belongs to what was asked for.
struct OpenedRecord {
  BundleRecord record;
  Seal seal = Seal::kAes256Gcm;
  std::array<std::byte, 16> salt{};  // of this bundle's own key
  std::vector<uint64_t> sums;        // kChecks: of each stripe
  uint32_t stripes = 0;
};

// Why bytes are not what was asked for; counted by name.
enum class BadBundle {
  kNone = 0,
  kShort,       // lengths do not add up
  kVersion,     // another format
  kSeal,        // altered, or sealed with another key, or for another name
  kInsecure,    // not sealed, where sealed is asked for
  kSpace,
  kGeneration,
  kName,
  kTokens,
  kContent,
  kLayout,      // pages that the space's groups do not have
};
const char* NameOf(BadBundle bad);

struct Wanted {
  Seal least = Seal::kAes256Gcm;  // kChecks accepts both
  block::SpaceId space{};
  std::span<const block::LayerGroup> groups;
  uint64_t generation = 0;
  ChainName name{}, parent{};
  uint32_t first_token = 0;
  block::SequenceView block;  // the tokens and content that were asked for
};

// Opens a record and compares all that it says with what is wanted.
BadBundle OpenRecord(const TenantKeys& keys, std::span<const std::byte> bytes, const Wanted& wanted,
                     OpenedRecord* opened);

// The bundle's stripes as the store fills them: runs into `pages`, whose bytes come sealed, with
// the seals of stripes in `tags`, which it resizes and which must stay.
std::vector<Runs> StripesInto(const OpenedRecord& opened, std::span<const std::span<std::byte>> pages,
                              std::vector<std::array<std::byte, 16>>* tags);

// Opens the pages in place, once all stripes are there. False: they are not those of the record;
// the pages hold anything then.
bool OpenPages(const TenantKeys& keys, const OpenedRecord& opened,
               std::span<const std::span<std::byte>> pages,
               std::span<const std::array<std::byte, 16>> tags);

}  // namespace prefixd::remote
