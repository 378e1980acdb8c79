// The tables of an arena file that an earlier daemon left. The input: changes of five bytes, where
// (u32) and what to combine with.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::fuzz {
namespace {

constexpr size_t kChange = sizeof(uint32_t) + 1;

// An arena of 2 MiB with twelve pages in it, once: its tables.
struct Template {
  ram::Arena::Options options;
  std::string tables;
  uint64_t file_bytes = 0;
};

ram::Arena::Options OptionsAt(const std::string& path) {
  return {.capacity_bytes = 2 * ram::kMiB,
          .slab_bytes = 64 * ram::kKiB,
          .path = path,
          .epoch = 1,
          .max_capacity_bytes = 2 * ram::kMiB};
}

// Empty without a tmpfs.
const Template& Made() {
  static const Template made = [] {
    Template arena;
    const ram::ArenaPath path;
    const auto opened = ram::Arena::Open(OptionsAt(path.str()));
    if (!opened.ok()) return arena;
    const uint32_t space = (*opened)->AddSpace(ram::SpaceIdOf(5), "identity five").value();
    for (uint64_t seed = 1; seed <= 12; ++seed) ram::Store(**opened, space, seed, 20 * ram::kKiB);
    arena.tables.resize((*opened)->data_offset());
    arena.file_bytes = (*opened)->file_bytes();
    std::ifstream(path.str(), std::ios::binary)
        .read(arena.tables.data(), static_cast<std::streamsize>(arena.tables.size()));
    return arena;
  }();
  return made;
}

void ExpectWhole(ram::Arena& arena) {
  for (const ram::FoundPage& page : arena.TakeFound()) {
    Expect(page.extent.offset + page.extent.bytes <= arena.file_bytes(), "a page lies in the file");
    Expect(page.content.page_bytes <= page.extent.bytes, "a page fits its extent");
    Expect(page.content.tokens.tokens.size() <= block::kMaxRecordTokens, "a block has an end");
    uint64_t sum = 0;
    for (const block::Token token : page.content.tokens.tokens) sum += token;
    Expect(sum >> 48 == 0, "a block's tokens are numbers of 32 bits");
    arena.Free(page.extent);
  }
  for (const ram::HeldExtent& held : arena.TakeHeld()) arena.Free(held.extent);
  Expect(arena.stats().extents == 0, "what was found is all there is");
  for (auto extent = arena.Allocate(20 * ram::kKiB, 20 * ram::kKiB); extent.ok();
       extent = arena.Allocate(20 * ram::kKiB, 20 * ram::kKiB)) {
    arena.data(*extent)[0] = std::byte{1};
  }
}

void ArenaTables(Bytes input) {
  if (Made().tables.empty()) return;
  std::string tables = Made().tables;
  for (; input.size() >= kChange; input = input.subspan(kChange)) {
    uint32_t at = 0;
    std::memcpy(&at, input.data(), sizeof(at));
    char& byte = tables[at % tables.size()];
    byte = static_cast<char>(byte ^ static_cast<char>(input[sizeof(at)]));
  }
  const ram::ArenaPath path;
  std::ofstream(path.str(), std::ios::binary) << tables;
  std::filesystem::resize_file(path.str(), Made().file_bytes);
  std::filesystem::permissions(path.str(), std::filesystem::perms(0640));
  const auto arena = ram::Arena::Open(OptionsAt(path.str()));
  if (arena.ok()) ExpectWhole(**arena);
}

std::vector<std::string> ArenaTablesSeeds() { return {"", std::string(3 * kChange, '\1')}; }

}  // namespace

std::vector<Target> ArenaTargets() { return {{"arena_tables", ArenaTables, ArenaTablesSeeds}}; }

}  // namespace prefixd::fuzz
