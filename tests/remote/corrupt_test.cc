// Bytes that are not those of the bundle that was asked for are not served, and are counted under
// the reason that a person can act on. (R5)
#include <deque>
#include <map>

#include "gtest/gtest.h"

#include "tests/remote/samples.h"

namespace prefixd::remote {
namespace {

// A block, its bundle, and others that a server could give in its place.
struct World {
  World(SampleMaker& make, Seal seal, const Sample& of)
      : sample(of), bundle(StoredOf(SomeKeys(), seal, of)) {
    Sample other = sample;
    testing::Fill(other.pages[0].data(), other.pages[0].size(), make.Below(1 << 30));
    older = StoredOf(SomeKeys(), seal, other);
    other = sample;
    const TenantKeys stranger = KeysOf("the bytes of a key file", "team b");
    other.NameIt(stranger);
    of_tenant = StoredOf(stranger, seal, other);
    other = sample;
    ++other.record.generation;
    other.NameIt(SomeKeys());
    of_generation = StoredOf(SomeKeys(), seal, other);
    other = sample;
    ++other.record.tokens[0];
    other.NameIt(SomeKeys());
    of_block = StoredOf(SomeKeys(), seal, other);
    other = sample;
    other.record.formats += "s";
    of_formats = StoredOf(SomeKeys(), seal, other);
    unsealed = StoredOf(SomeKeys(), Seal::kChecks, sample);
    // What a writer with the right key would have had to get wrong.
    const auto wrong = [&](auto change) {
      other = sample;
      change(&other.record);
      return StoredOf(SomeKeys(), seal, other);
    };
    wrong_tokens = wrong([](BundleRecord* record) { ++record->tokens[3]; });
    wrong_content = wrong([](BundleRecord* record) { record->content.push_back({.length = 1}); });
    wrong_space = wrong([](BundleRecord* record) { record->space[5] ^= std::byte{8}; });
    wrong_generation = wrong([](BundleRecord* record) { --record->generation; });
    wrong_layout = wrong([](BundleRecord* record) { ++record->pages[0].page_bytes; });
  }

  Sample sample;
  Stored bundle, older, of_tenant, of_generation, of_block, of_formats, unsealed;
  Stored wrong_tokens, wrong_content, wrong_space, wrong_generation, wrong_layout;
};

void FlipBit(SampleMaker& make, std::string* bytes, size_t begin, size_t end) {
  char& byte = (*bytes)[begin + make.Below(end - begin)];
  byte = static_cast<char>(byte ^ (1 << make.Below(8)));
}
std::string Tail(SampleMaker& make) { return std::string(1 + make.Below(40), '\x5a'); }

constexpr size_t kHeaderBytes = 26, kSealAt = 5, kLengthAt = 6, kSaltAt = 10;

// One way in which a bundle goes wrong. `change` has a copy of the world's bundle to change.
struct Kind {
  const char* name;
  const char* sealed;   // the reason that is counted
  const char* checked;  // the same with Seal::kChecks; null: it cannot be told, or does not exist
  void (*change)(SampleMaker& make, const World& world, Stored* stored);
  bool wants_stripes = false;  // several, of the same length
};

const Kind kKinds[] = {
    {"bit of the record's body", "seal", "seal",
     [](SampleMaker& make, const World&, Stored* stored) {
       FlipBit(make, &stored->record, kHeaderBytes, stored->record.size() - sizeof(Tag));
     }},
    {"bit of the record's seal", "seal", "seal",
     [](SampleMaker& make, const World&, Stored* stored) {
       FlipBit(make, &stored->record, stored->record.size() - 8, stored->record.size());
     }},
    {"bit of the salt", "seal", "seal",
     [](SampleMaker& make, const World&, Stored* stored) {
       FlipBit(make, &stored->record, kSaltAt, kHeaderBytes);
     }},
    {"bit of the length", "short", "short",
     [](SampleMaker& make, const World&, Stored* stored) {
       FlipBit(make, &stored->record, kLengthAt, kSaltAt);
     }},
    {"older version", "version", "version",
     [](SampleMaker&, const World&, Stored* stored) { stored->record[4] = 0; }},
    {"unknown magic or version", "version", "version",
     [](SampleMaker& make, const World&, Stored* stored) {
       FlipBit(make, &stored->record, 0, kSealAt);
     }},
    {"unknown seal", "version", "version",
     [](SampleMaker& make, const World&, Stored* stored) {
       stored->record[kSealAt] = static_cast<char>(2 + make.Below(254));
     }},
    {"said to be unsealed", "short", nullptr,
     [](SampleMaker&, const World&, Stored* stored) { stored->record[kSealAt] = 0; }},
    {"unsealed", "insecure", nullptr,
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.unsealed; }},
    {"record truncated", "short", "short",
     [](SampleMaker& make, const World&, Stored* stored) {
       stored->record.resize(make.Below(stored->record.size()));
     }},
    {"record lengthened", "short", "short",
     [](SampleMaker& make, const World&, Stored* stored) { stored->record += Tail(make); }},
    {"bit of a stripe", "bytes", "bytes",
     [](SampleMaker& make, const World&, Stored* stored) {
       std::string& stripe = stored->stripes[make.Below(stored->stripes.size())];
       FlipBit(make, &stripe, 0, std::max(stripe.size() - sizeof(Tag), size_t{1}));
     }},
    {"bit of a stripe's seal", "bytes", nullptr,
     [](SampleMaker& make, const World&, Stored* stored) {
       std::string& stripe = stored->stripes[make.Below(stored->stripes.size())];
       FlipBit(make, &stripe, stripe.size() - sizeof(Tag), stripe.size());
     }},
    {"stripes swapped", "bytes", "bytes",
     [](SampleMaker&, const World&, Stored* stored) {
       std::swap(stored->stripes[0], stored->stripes[1]);
     },
     true},
    {"stripe twice", "bytes", "bytes",
     [](SampleMaker&, const World&, Stored* stored) { stored->stripes[1] = stored->stripes[0]; },
     true},
    {"stripe truncated", "length", "length",
     [](SampleMaker& make, const World&, Stored* stored) {
       stored->stripes.back().resize(make.Below(stored->stripes.back().size()));
     }},
    {"stripe lengthened", "length", "length",
     [](SampleMaker& make, const World&, Stored* stored) { stored->stripes[0] += Tail(make); }},
    {"stripe missing", "gone", "gone",
     [](SampleMaker&, const World&, Stored* stored) { stored->stripes.pop_back(); }},
    {"replayed stripe of an older bundle", "bytes", "bytes",
     [](SampleMaker&, const World& world, Stored* stored) {
       stored->stripes[0] = world.older.stripes[0];
     }},
    {"record of an older bundle", "bytes", "bytes",
     [](SampleMaker&, const World& world, Stored* stored) { stored->record = world.older.record; }},
    {"another tenant's bundle", "seal", "name",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.of_tenant; }},
    {"another generation's bundle", "seal", "generation",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.of_generation; }},
    {"another block's bundle", "seal", "name",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.of_block; }},
    {"bundle in other formats", "seal", "name",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.of_formats; }},
    {"other tokens", "tokens", "tokens",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.wrong_tokens; }},
    {"other content", "content", "content",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.wrong_content; }},
    {"other space", "space", "space",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.wrong_space; }},
    {"other generation", "generation", "generation",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.wrong_generation; }},
    {"other layout", "layout", "layout",
     [](SampleMaker&, const World& world, Stored* stored) { *stored = world.wrong_layout; }},
};

// Reads so many corrupted bundles and returns how often each kind had each outcome.
std::map<std::string, std::map<std::string, uint64_t>> ReadCorrupted(Seal seal, uint64_t values) {
  SampleMaker make(20261124);
  std::deque<World> small, large;
  for (int i = 0; i < 24; ++i) {
    small.emplace_back(make, seal, make.State(SomeKeys(), 9 + make.Below(5'000)));
    small.emplace_back(make, seal, make.Any(SomeKeys(), 3'000));
  }
  for (int i = 0; i < 2; ++i) {
    large.emplace_back(make, seal, make.State(SomeKeys(), 2 * kStripePayloadBytes + 100));
  }
  std::map<std::string, std::map<std::string, uint64_t>> outcomes;
  uint64_t read = 0;
  while (read < values) {
    for (const Kind& kind : kKinds) {
      if (seal == Seal::kChecks && kind.checked == nullptr) continue;
      const std::deque<World>& worlds = kind.wants_stripes ? large : small;
      const World& world = worlds[make.Below(worlds.size())];
      Stored stored = world.bundle;
      kind.change(make, world, &stored);
      Wanted wanted = world.sample.wanted();
      wanted.least = seal;
      ++outcomes[kind.name][Read(SomeKeys(), wanted, stored).outcome];
      ++read;
    }
  }
  return outcomes;
}

void ExpectEachUnderItsReason(
    const std::map<std::string, std::map<std::string, uint64_t>>& outcomes,
    const char* Kind::*reason) {
  for (const Kind& kind : kKinds) {
    if (kind.*reason == nullptr) continue;
    const auto of_kind = outcomes.find(kind.name);
    ASSERT_NE(of_kind, outcomes.end()) << kind.name;
    for (const auto& [outcome, times] : of_kind->second) {
      EXPECT_EQ(outcome, kind.*reason) << kind.name << ", " << times << " times";
    }
  }
}

TEST(CorruptTest, R5NoneOf100000CorruptedValuesIsServed) {
  ExpectEachUnderItsReason(ReadCorrupted(Seal::kAes256Gcm, 100'000), &Kind::sealed);
}

TEST(CorruptTest, AccidentsAreFoundWithChecksToo) {
  ExpectEachUnderItsReason(ReadCorrupted(Seal::kChecks, 20'000), &Kind::checked);
}

TEST(CorruptTest, WhatIsNotCorruptedIsServed) {
  SampleMaker make(20261124);
  for (const Seal seal : {Seal::kChecks, Seal::kAes256Gcm}) {
    const World world(make, seal, make.Any(SomeKeys(), 3'000));
    Wanted wanted = world.sample.wanted();
    wanted.least = seal;
    EXPECT_EQ(Read(SomeKeys(), wanted, world.bundle).outcome, "served");
    EXPECT_EQ(Read(SomeKeys(), wanted, world.older).outcome, "served");
  }
}

TEST(CorruptTest, EveryBitOfASealedBundleCounts) {
  SampleMaker make(3);
  const Sample sample = make.State(SomeKeys(), 50);
  const Stored whole = StoredOf(SomeKeys(), Seal::kAes256Gcm, sample);
  for (const bool record : {true, false}) {
    for (size_t bit = 0; bit < 8 * (record ? whole.record : whole.stripes[0]).size(); ++bit) {
      Stored stored = whole;
      char& byte = (record ? stored.record : stored.stripes[0])[bit / 8];
      byte = static_cast<char>(byte ^ (1 << bit % 8));
      EXPECT_NE(Read(SomeKeys(), sample.wanted(), stored).outcome, "served") << bit;
    }
  }
}

}  // namespace
}  // namespace prefixd::remote
