#include "page_names.h"

#include <cstring>
#include <optional>
#include <span>

#include "base/checksum.h"
#include "block/arena_file.h"
#include "block/extent.h"

namespace prefixd::client {
namespace {

// Where the record of a page is in the file, and where in the page an offset points.
struct Place {
  uint64_t record = 0;
  uint64_t in_page = 0;
};

// The header's check was right when the file was mapped. The slab's record is guarded.
std::optional<Place> PlaceOf(const ArenaMapping& arena, uint64_t offset) {
  const auto& header = *reinterpret_cast<const block::ArenaHeader*>(arena.file().data());
  if (offset >= arena.data_bytes() || header.slab_bytes == 0) return std::nullopt;
  const uint64_t slab = offset / header.slab_bytes, in_slab = offset % header.slab_bytes;
  const uint64_t slab_at = header.slabs_offset + slab * sizeof(block::SlabRecord);
  if (slab >= header.slabs || slab_at + sizeof(block::SlabRecord) > arena.file().size()) {
    return std::nullopt;
  }
  const auto& record = *reinterpret_cast<const block::SlabRecord*>(arena.file().data() + slab_at);
  const uint64_t units = record.extent_units.load(std::memory_order_acquire);
  const uint64_t extent_bytes = static_cast<uint32_t>(units) * block::kExtentUnit;
  if (!block::IsGuarded(units) || extent_bytes == 0) return std::nullopt;
  const uint64_t in_records = in_slab / extent_bytes * sizeof(block::PageRecord);
  const Place place{.record = header.records_offset + slab * header.slab_record_bytes + in_records,
                    .in_page = in_slab % extent_bytes};
  if (in_records >= header.slab_record_bytes ||
      place.record + sizeof(block::PageRecord) > arena.file().size()) {
    return std::nullopt;
  }
  return place;
}

// What a name is made of, as it is in the page's record.
struct Named {
  std::byte hash[16] = {};
  uint64_t check = 0;
  uint32_t tokens = 0;
  uint16_t group = 0, part = 0, rung = 0, zero = 0;
};
static_assert(sizeof(Named) == 40);  // no padding: the digest is of its bytes

// A SHA-256, cut: whoever chooses tokens and bytes cannot find two pages with one name. Of a
// damaged record it makes a name that no page has.
PageName NameOf(const block::PageRecord& record) {
  if (record.state.load(std::memory_order_acquire) !=
      static_cast<uint32_t>(block::RecordState::kPublished)) {
    return {};
  }
  Named named{.check = record.page_check,
              .tokens = record.tokens,
              .group = record.group,
              .part = record.part,
              .rung = record.rung};
  std::memcpy(named.hash, record.hash, sizeof(named.hash));
  const base::Digest256 digest = base::Sha256(std::as_bytes(std::span(&named, 1)));
  PageName name;
  std::memcpy(&name.high, digest.data(), sizeof(name.high));
  std::memcpy(&name.low, digest.data() + sizeof(name.high), sizeof(name.low));
  return name;
}

}  // namespace

PageName PageNames::Of(const ArenaMapping& arena, uint64_t offset) {
  const std::optional<Place> place = PlaceOf(arena, offset);
  if (!place.has_value()) return {};
  const auto [found, is_new] = pages_.try_emplace(place->record);
  if (is_new) {
    found->second =
        NameOf(*reinterpret_cast<const block::PageRecord*>(arena.file().data() + place->record));
  }
  if (found->second == PageName{}) return {};
  return {.high = found->second.high, .low = found->second.low ^ place->in_page};
}

}  // namespace prefixd::client
