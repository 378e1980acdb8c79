// What the daemon itself left on SSD.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/checksum.h"
#include "block/space_identity.h"
#include "cache/store/record.h"
#include "ssd/direct_read.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"
#include "tests/support/kv_pages.h"

namespace prefixd::fuzz {
namespace {

std::string Text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// --- records ---

void ReadRecord(Bytes bytes) {
  const absl::StatusOr<cache::BlockRecord> record = cache::DecodeRecord(bytes);
  if (!record.ok()) return;
  Expect(cache::EncodeRecord(*record) == Text(bytes), "a record that is read is written the same");
}

void Record(Bytes input) {
  ReadRecord(input);
  if (input.size() < sizeof(uint64_t)) return;
  std::vector<std::byte> right(input.begin(), input.end());
  const uint64_t sum = base::Xxh3(Bytes(right).first(right.size() - sizeof(sum)));
  std::memcpy(right.data() + right.size() - sizeof(sum), &sum, sizeof(sum));
  ReadRecord(right);
}

std::vector<std::string> RecordSeeds() {
  cache::BlockRecord record;
  record.first_token = 64;
  record.last_use = 9;
  std::vector<std::string> seeds{cache::EncodeRecord(record)};
  record.block.tokens = {1, 2, 3, 4, 5, 6, 7};
  record.block.content = {{.start = 1, .item_offset = 3, .length = 2}};
  record.block.ends = {3, 7};
  record.block.pages = {
      {.group = 0, .rung = 1, .tokens = 7, .page_bytes = 4096, .payload_bytes = 4000, .check = 5},
      {.group = 2, .rung = 0, .tokens = 7, .page_bytes = 128, .payload_bytes = 100, .check = 6}};
  seeds.push_back(cache::EncodeRecord(record));
  return seeds;
}

// --- identities ---

void Identity(Bytes input) {
  absl::StatusOr<block::SpaceIdentity> identity = block::DecodeSpaceIdentity(Text(input));
  if (!identity.ok()) return;
  Expect(block::Encode(*identity) == Text(input), "an identity that is read is written the same");
  Expect(block::NormalizeAndValidate(&*identity).ok(), "an identity that is read is valid");
}

std::vector<std::string> IdentitySeeds() {
  std::vector<std::string> seeds;
  for (const block::SpaceIdentity& valid :
       {testing::SmallIdentity(64, 4), testing::SmallIdentity(16, 2)}) {
    block::SpaceIdentity identity = valid;
    Expect(block::NormalizeAndValidate(&identity).ok(), "seeds are valid");
    seeds.push_back(block::Encode(identity));
  }
  return seeds;
}

// --- markers ---

void Marker(Bytes input) {
  uint64_t records = 0;
  std::vector<ssd::PagePlace> places;
  if (!ssd::DecodeClosingMarker(Text(input), &records, &places)) return;
  Expect(places.size() <= input.size(), "a marker holds the places that it counts");
}

std::vector<std::string> MarkerSeeds() {
  const std::vector<ssd::PagePlace> places(5);
  return {ssd::EncodeClosingMarker(0, {}), ssd::EncodeClosingMarker(7, places)};
}

}  // namespace

std::vector<Target> StoreTargets() {
  return {{"records", Record, RecordSeeds},
          {"identities", Identity, IdentitySeeds},
          {"markers", Marker, MarkerSeeds}};
}

}  // namespace prefixd::fuzz
