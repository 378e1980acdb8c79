// Bundle format v1: one full block as other hosts find it, sealed with the tenant's key.
//
// A bundle is a record (record.h has its bytes) and stripes: the bytes of the block's pages, one
// page after the other, cut every kStripePayloadBytes. Sealed, both are AES-256-GCM under a key of
// the bundle's own (bundle_cipher.h), and a stripe ends with its seal.
//
// Pure functions, thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
using Salt = std::array<std::byte, 16>;
using Tag = std::array<std::byte, 16>;  // the seal of a record or a stripe

inline constexpr size_t kStripePayloadBytes = kStripeBytes - sizeof(Tag);  // also with kChecks
inline constexpr uint64_t kMaxBundleBytes = uint64_t{kMaxStripes} * kStripePayloadBytes;  // pages

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
  std::string formats{};  // as in KeyOf: a bundle is found under its own key alone
  std::vector<block::Token> tokens{};
  std::vector<block::ContentKey> content{};
  std::vector<uint32_t> ends{};  // token counts in the block at which a sequence ended, ascending
  std::vector<BundlePage> pages{};  // at least one
  bool operator==(const BundleRecord&) const = default;
};

// A bundle on its way out, as the store takes it.
struct SealedBundle {
  std::string record;
  std::vector<std::span<const std::byte>> stripes;  // each at most kStripeBytes, in `bytes`
  std::unique_ptr<std::byte[]> bytes;
};

// `pages[i]` has record.pages[i].page_bytes bytes, at most kMaxBundleBytes in all. Somebody may
// write to them meanwhile: each byte is read once, and the seals are of what was read.
SealedBundle SealBundle(const TenantKeys& keys, Seal seal, const BundleRecord& record,
                        std::span<const std::span<const std::byte>> pages);

// A record that was read and belongs to what was asked for.
struct OpenedRecord {
  BundleRecord record{};
  Seal seal = Seal::kAes256Gcm;
  Salt salt{};                   // of this bundle's own key
  std::vector<uint64_t> sums{};  // kChecks: of each stripe
  uint32_t stripes = 0;
};

// Why bytes are not what was asked for; counted by name.
enum class BadBundle {
  kNone = 0,
  kShort,     // lengths do not add up
  kVersion,   // another format
  kSeal,      // altered, or sealed with another key, or for another name or other formats
  kInsecure,  // not sealed, where sealed is asked for
  kSpace,
  kGeneration,
  kName,    // another name, parent's name or other formats
  kTokens,  // other tokens, or at another place in the sequence, or ends outside the block
  kContent,
  kLayout,  // pages that the space's groups do not have
};
const char* NameOf(BadBundle bad);

struct Wanted {
  Seal least = Seal::kAes256Gcm;  // kChecks accepts both
  block::SpaceId space{};
  std::span<const block::LayerGroup> groups;
  uint64_t generation = 0;
  ChainName name{}, parent{};
  uint32_t first_token = 0;
  std::string formats{};
  block::SequenceView block{};  // the tokens and content that were asked for
};

// Opens a record and compares all that it says with what is wanted. Returns the first thing that
// differs; with kNone alone it sets `opened`. A sealed record of another name is kSeal: the seal
// holds for name and formats too.
BadBundle OpenRecord(const TenantKeys& keys, std::span<const std::byte> bytes, const Wanted& wanted,
                     OpenedRecord* opened);

// The bundle's stripes as the store fills them: runs into `pages`, whose bytes come sealed, and one
// into `tags`, which it resizes and which must stay. `pages[i]` has record.pages[i].page_bytes
// bytes.
std::vector<Runs> StripesInto(const OpenedRecord& opened,
                              std::span<const std::span<std::byte>> pages, std::vector<Tag>* tags);

// Opens the pages in place, once all stripes are there. `pages` and `tags` are those of
// StripesInto. Nobody else may write to them meanwhile. False: they are not those of the record;
// the pages hold anything then.
bool OpenPages(const TenantKeys& keys, const OpenedRecord& opened,
               std::span<const std::span<std::byte>> pages, std::span<const Tag> tags);

}  // namespace prefixd::remote
