// Blocks and bundles for the tests of this room.
#pragma once
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "block/page_layout.h"
#include "remote/bundle.h"
#include "tests/support/kv_pages.h"

namespace prefixd::remote {

inline TenantKeys KeysOf(std::string_view secret, const std::string& tenant) {
  return DeriveKeys(base::AsBytes(secret), tenant);
}
inline TenantKeys SomeKeys() { return KeysOf("the bytes of a key file", "team a"); }

inline block::LayerGroup StateGroup(uint64_t state_bytes) {
  block::LayerGroup group;
  group.name = "state";
  group.kind = block::LayerKind::kState;
  group.layers = {0};
  group.state_bytes = state_bytes;
  return group;
}

// A block, its pages' bytes, and what a reader asks for who wants it.
struct Sample {
  std::vector<block::LayerGroup> groups;
  BundleRecord record;
  std::vector<std::vector<std::byte>> pages;

  // Valid while the sample stays as it is.
  Wanted wanted() const {
    return {.space = record.space,
            .groups = groups,
            .generation = record.generation,
            .name = record.name,
            .parent = record.parent,
            .first_token = record.first_token,
            .formats = record.formats,
            .block = {record.tokens, record.content}};
  }
  std::vector<std::span<const std::byte>> views() const { return {pages.begin(), pages.end()}; }

  void NameIt(const TenantKeys& keys) {
    record.name = Namer(keys, record.generation, record.space)
                      .Next(record.parent, {record.tokens, record.content});
  }
  void AddPage(uint32_t group, uint32_t rung, uint64_t seed) {
    const auto tokens = static_cast<uint32_t>(record.tokens.size());
    const uint64_t bytes = block::LayoutOfPage(groups[group], rung, tokens).page_bytes;
    record.pages.push_back({.group = group, .rung = rung, .page_bytes = bytes});
    pages.emplace_back(bytes);
    testing::Fill(pages.back().data(), bytes, seed);
  }
};

class SampleMaker {
 public:
  explicit SampleMaker(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  // A block with one state of so many bytes.
  Sample State(const TenantKeys& keys, uint64_t bytes) {
    Sample sample = Block();
    sample.groups = {StateGroup(bytes)};
    sample.AddPage(0, static_cast<uint32_t>(1 + Below(sample.record.tokens.size())), random_());
    sample.NameIt(keys);
    return sample;
  }

  // Groups of all kinds, with pages of some of them. A state has up to `state_bytes`.
  Sample Any(const TenantKeys& keys, uint64_t state_bytes) {
    Sample sample = Block();
    const size_t groups = 1 + Below(4);
    while (sample.groups.size() < groups) sample.groups.push_back(Group(state_bytes));
    while (sample.pages.empty()) {
      for (uint32_t group = 0; group < groups; ++group) AddSomePages(group, &sample);
    }
    sample.NameIt(keys);
    return sample;
  }

 private:
  template <size_t N>
  void Fill(std::array<std::byte, N>* bytes) {
    for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random_());
  }
  uint64_t UpTo(uint64_t most) {  // all orders of magnitude alike
    const double power = static_cast<double>(random_() % 10'000) / 10'000;
    return static_cast<uint64_t>(std::pow(static_cast<double>(most), power));
  }

  Sample Block() {
    Sample sample;
    BundleRecord& record = sample.record;
    Fill(&record.space);
    record.generation = random_();
    const auto tokens = static_cast<uint32_t>(16 << Below(4));
    record.first_token = static_cast<uint32_t>(Below(100)) * tokens;
    if (record.first_token != 0) Fill(&record.parent);
    record.formats = std::to_string(Below(3));
    for (uint32_t i = 0; i < tokens; ++i) record.tokens.push_back(static_cast<uint32_t>(random_()));
    for (uint32_t start = 0; start < tokens && Below(2) == 0; start += 8) {
      record.content.push_back({.start = start, .item_offset = 3, .length = 4, .digest = {}});
      Fill(&record.content.back().digest);
    }
    for (uint32_t end = 1; end <= tokens && Below(3) == 0; end += 5) record.ends.push_back(end);
    return sample;
  }

  block::LayerGroup Group(uint64_t state_bytes) {
    const uint64_t kind = Below(3);
    if (kind == 0) return StateGroup(UpTo(state_bytes));
    block::LayerGroup group;
    group.name = "keys and values";
    for (uint32_t layer = 0; layer <= Below(4); ++layer) group.layers.push_back(layer);
    group.kv_heads = static_cast<uint32_t>(1 + Below(4));
    group.key_dim = group.value_dim = static_cast<uint32_t>(32 << Below(3));
    const auto format = [](uint8_t bits) {
      return quant::MlxAffineFormat(bits, 32, quant::Dtype::kF16);
    };
    group.ladder = {{format(8), format(8)}, {format(8), format(4)}, {format(4), format(4)}};
    if (kind == 1) {
      group.kind = block::LayerKind::kSliding;
      group.window = 512;
    }
    return group;
  }

  void AddSomePages(uint32_t group, Sample* sample) {
    const bool state = sample->groups[group].kind == block::LayerKind::kState;
    const auto tokens = static_cast<uint32_t>(sample->record.tokens.size());
    for (uint32_t rung = state ? 1 : 0; rung < (state ? tokens + 1 : 3); ++rung) {
      if (Below(state ? tokens : 2) == 0) sample->AddPage(group, rung, random_());
    }
  }

  std::mt19937_64 random_;
};

// A bundle as a store has it.
struct Stored {
  Stored() = default;
  explicit Stored(const SealedBundle& bundle) : record(bundle.record) {
    for (const std::span<const std::byte> stripe : bundle.stripes) {
      stripes.emplace_back(base::AsText(stripe));
    }
  }
  std::string record;
  std::vector<std::string> stripes;
};

inline Stored StoredOf(const TenantKeys& keys, Seal seal, const Sample& sample) {
  return Stored(SealBundle(keys, seal, sample.record, sample.views()));
}

// Gives the stripes to their runs, as RemoteStore::Load does: "gone", "length", or "" if it can.
inline std::string LoadInto(const std::vector<std::string>& stripes,
                            const std::vector<Runs>& runs) {
  if (stripes.size() < runs.size()) return "gone";
  for (size_t i = 0; i < runs.size(); ++i) {
    size_t bytes = 0;
    for (const std::span<std::byte> run : runs[i]) bytes += run.size();
    if (bytes != stripes[i].size()) return "length";
    const auto* from = reinterpret_cast<const std::byte*>(stripes[i].data());
    for (const std::span<std::byte> run : runs[i]) {
      std::copy_n(from, run.size(), run.data());
      from += run.size();
    }
  }
  return "";
}

struct ReadBundle {
  std::string outcome;  // "served", why the record is bad, LoadInto's, or "bytes"
  OpenedRecord opened;
  std::vector<std::vector<std::byte>> pages;
};

// What a host does with a bundle that it finds.
inline ReadBundle Read(const TenantKeys& keys, const Wanted& wanted, const Stored& stored) {
  ReadBundle read;
  const BadBundle bad = OpenRecord(keys, base::AsBytes(stored.record), wanted, &read.opened);
  if (bad != BadBundle::kNone) {
    read.outcome = NameOf(bad);
    return read;
  }
  std::vector<std::span<std::byte>> places;
  for (const BundlePage& page : read.opened.record.pages) read.pages.emplace_back(page.page_bytes);
  places.assign(read.pages.begin(), read.pages.end());
  std::vector<Tag> tags;
  read.outcome = LoadInto(stored.stripes, StripesInto(read.opened, places, &tags));
  if (!read.outcome.empty()) return read;
  read.outcome = OpenPages(keys, read.opened, places, tags) ? "served" : "bytes";
  return read;
}

}  // namespace prefixd::remote
