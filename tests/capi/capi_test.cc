// The C functions of libprefixd.so against the real prefixd: from C, by dlopen, and where they are
// called with nothing, too little, or too much.
#include <array>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "prefixd.h"
#include "tests/e2e/fixture.h"

namespace {

using prefixd::testing::EndToEndTest;
using prefixd::testing::Process;

constexpr uint32_t kTokens = 200, kHeads = 2, kDim = 64;

// One layer of raw bf16, and the bytes of its K and V.
struct Engine {
  explicit Engine(uint32_t seed) {
    for (uint32_t i = 0; i < kTokens; ++i) tokens[i] = i * 31 % 1009 + seed;
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] = static_cast<uint8_t>(i * 7 + seed);
      value[i] = static_cast<uint8_t>(i * 13 + seed);
    }
  }
  static prefixd_planes PlanesOf(std::array<uint8_t, kHeads * kTokens * kDim * 2>* raw) {
    prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
    planes.codes = raw->data();
    return planes;
  }
  prefixd_space* Open(prefixd_client* client) {
    format.key = format.value = {PREFIXD_RAW, PREFIXD_BF16, 0, 0, 0, 0};
    layer.kv_heads = kHeads;
    layer.key_dim = layer.value_dim = kDim;
    layer.format_count = 1;
    layer.formats = &format;
    spec.model = "capi";
    spec.weights_digest = digest;
    spec.layers = &layer;
    spec.layer_count = 1;
    return prefixd_open_space(client, &spec);
  }
  prefixd_status Store(prefixd_space* space, prefixd_commit_info* info) {
    prefixd_plan* plan = prefixd_reserve(space, tokens.data(), kTokens, nullptr);
    const prefixd_planes k = PlanesOf(&key), v = PlanesOf(&value);
    prefixd_status status = prefixd_write_packed(plan, 0, 0, kTokens, &k, &v);
    if (status == PREFIXD_OK) status = prefixd_commit(plan, kTokens, nullptr, info);
    const std::string why = prefixd_last_error();
    prefixd_abandon(plan);
    EXPECT_EQ(status, PREFIXD_OK) << why;
    return status;
  }

  std::array<uint32_t, kTokens> tokens{};
  std::array<uint8_t, kHeads * kTokens * kDim * 2> key{}, value{};
  const uint8_t digest[32] = {5};
  prefixd_format format{};
  prefixd_layer layer = PREFIXD_INIT(prefixd_layer);
  prefixd_space_spec spec = PREFIXD_INIT(prefixd_space_spec);
};

class CapiTest : public EndToEndTest {
 protected:
  static std::string Run(const std::vector<std::string>& argv) {
    Process program(argv);
    const int code = program.Wait();
    return program.out() + program.err() + (code == 0 ? "" : "exit " + std::to_string(code));
  }
  prefixd_client* Attach(bool arena = true) const {
    const std::string where = address();
    prefixd_options options = PREFIXD_INIT(prefixd_options);
    options.address = where.c_str();
    options.no_arena = !arena;
    return prefixd_attach(&options);
  }
};

TEST_F(CapiTest, AnEngineInCStoresReadsBackAndAttends) {
  StartDaemon();
  const std::string program = Program("capi_round_trip");
  EXPECT_EQ(Run({program, address()}), "cached 0 stored 300\n");
  EXPECT_EQ(Run({program, address()}), "cached 300 stored 0\n") << "another process's";
  daemon_->Signal(SIGKILL);
  daemon_->Wait();
  StartDaemon();
  EXPECT_EQ(Run({program, address()}), "cached 300 stored 0\n") << "after kill -9";
}

TEST_F(CapiTest, ItLoadsIntoAProcessThatCarriesAnotherProtobuf) {
#ifdef PREFIXD_SANITIZED
  GTEST_SKIP() << "a sanitizer does not allow RTLD_DEEPBIND";
#endif
  StartDaemon();
  const std::string library = Program("libprefixd.so");
  EXPECT_EQ(Run({Program("capi_stranger"), library, address()}), "cached 0 stored 200\n");
  EXPECT_EQ(Run({Program("capi_stranger_static"), library, address()}), "cached 200 stored 0\n")
      << "with a protobuf linked into the program, its symbols open to everybody";
  EXPECT_EQ(Run({Program("capi_stranger_other"), library, address()}), "cached 200 stored 0\n")
      << "with functions of protobuf's names that are something else";
}

TEST_F(CapiTest, OnlyItsOwnFunctionsAreVisible) {
  Process nm({"/usr/bin/nm", "-D", "--defined-only", Program("libprefixd.so")});
  ASSERT_EQ(nm.Wait(), 0) << nm.err();
  std::istringstream lines(nm.out());
  int functions = 0;
  std::string place, kind, name;
  while (lines >> place >> kind >> name) {
    if (name == "PREFIXD_1") continue;  // the version itself
    EXPECT_EQ(name.rfind("prefixd_", 0), 0u) << name;
    EXPECT_EQ(kind, "T") << name;
    ++functions;
  }
  EXPECT_GT(functions, 25);
  EXPECT_EQ(prefixd_abi_version(), uint32_t{PREFIXD_ABI_VERSION});
}

// T5
TEST_F(CapiTest, OverTcpTheTokenFileIsTheDoor) {
  StartDaemon({"--listen", "127.0.0.1:0"});
  const std::string said = daemon_->err(), mark = "127.0.0.1:0 port ";
  const size_t at = said.find(mark);
  ASSERT_NE(at, std::string::npos) << said;
  const std::string where =
      "127.0.0.1:" + std::to_string(std::atoi(said.c_str() + at + mark.size()));
  const std::string token = dir_ + "/prefixd.token";
  prefixd_options options = PREFIXD_INIT(prefixd_options);
  options.address = where.c_str();
  prefixd_client* bare = prefixd_attach(&options);
  Engine engine(1);
  prefixd_space* space = engine.Open(bare);  // waits for the first try
  EXPECT_EQ(prefixd_attached(bare, 0), 0);
  prefixd_counts counts = PREFIXD_INIT(prefixd_counts);
  prefixd_stats(bare, &counts);
  EXPECT_NE(std::string(prefixd_last_error()).find("no token came with the call"),
            std::string::npos)
      << prefixd_last_error();
  prefixd_close_space(space);
  prefixd_detach(bare);
  options.token_file = token.c_str();
  prefixd_client* client = prefixd_attach(&options);
  EXPECT_EQ(prefixd_attached(client, 20'000), 1) << prefixd_last_error();
  prefixd_detach(client);
}

TEST_F(CapiTest, WithoutADaemonNothingIsRestoredAndNothingFails) {
  prefixd_client* client = Attach();
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(prefixd_attached(client, 0), 0);
  Engine engine(1);
  prefixd_space* space = engine.Open(client);
  ASSERT_NE(space, nullptr) << prefixd_last_error();
  prefixd_match_info match = PREFIXD_INIT(prefixd_match_info);
  prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, nullptr, &match);
  EXPECT_NE(std::string(prefixd_last_error()).find("no daemon"), std::string::npos)
      << prefixd_last_error();
  EXPECT_EQ(prefixd_last_status(), PREFIXD_UNAVAILABLE);
  EXPECT_EQ(match.restorable_tokens, 0u);
  EXPECT_EQ(prefixd_wait_all(lease, 0), 0u);
  prefixd_plan* plan = prefixd_reserve(space, engine.tokens.data(), kTokens, nullptr);
  EXPECT_EQ(prefixd_missing(plan, nullptr, 0), 0u);
  EXPECT_EQ(prefixd_commit(plan, kTokens, nullptr, nullptr), PREFIXD_UNAVAILABLE);
  prefixd_abandon(plan);
  prefixd_release(lease, nullptr);
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, HandlesMayBeFreedInAnyOrder) {
  StartDaemon();
  prefixd_client* client = Attach();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1);
  prefixd_space* space = engine.Open(client);
  prefixd_commit_info info = PREFIXD_INIT(prefixd_commit_info);
  ASSERT_EQ(engine.Store(space, &info), PREFIXD_OK);
  EXPECT_EQ(info.stored_tokens, kTokens);
  prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, nullptr, nullptr);
  prefixd_plan* plan = prefixd_reserve(space, engine.tokens.data(), kTokens, nullptr);
  prefixd_detach(client);
  prefixd_close_space(space);
  Engine back(2);
  const prefixd_planes k = Engine::PlanesOf(&back.key), v = Engine::PlanesOf(&back.value);
  ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
  ASSERT_EQ(prefixd_gather(lease, 0, 0, kTokens, &k, &v), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(back.key, engine.key);
  EXPECT_EQ(back.value, engine.value);
  EXPECT_EQ(prefixd_commit(plan, kTokens, nullptr, nullptr), PREFIXD_OK) << prefixd_last_error();
  prefixd_release(lease, nullptr);
  prefixd_abandon(plan);
}

TEST_F(CapiTest, AModelThatIsNotSharedIsTold) {
  prefixd_client* client = Attach();
  EXPECT_EQ(prefixd_not_shared(client, "gemma", "its window rotates"), PREFIXD_OK) << "no daemon";
  EXPECT_EQ(prefixd_not_shared(client, "mamba", "unknown states"), PREFIXD_OK);
  StartDaemon();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  EXPECT_EQ(prefixd_not_shared(client, "mamba", nullptr), PREFIXD_OK);
  const prefixd_space_spec spec = PREFIXD_INIT(prefixd_space_spec);
  EXPECT_EQ(prefixd_open_space(client, &spec), nullptr) << "no layers";
  const std::string refused = prefixd_last_error();
  const auto notes = Ctl({"sessions"})["sessions"][0]["not_shared"];
  ASSERT_EQ(notes.size(), 2u) << notes.dump();
  EXPECT_EQ(notes[0]["model"], "(unnamed)");
  EXPECT_EQ(notes[0]["reason"], refused);
  EXPECT_EQ(notes[1]["model"], "gemma");
  EXPECT_EQ(notes[1]["reason"], "its window rotates");
  EXPECT_EQ(Ctl({"status"})["counters"]["spaces.refused"], 2);
  EXPECT_EQ(prefixd_not_shared(client, nullptr, "why"), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(), "not_shared: no model named");
  EXPECT_EQ(prefixd_not_shared(nullptr, "gemma", "why"), PREFIXD_UNAVAILABLE);
  EXPECT_STREQ(prefixd_last_error(), "not_shared: no client");
  prefixd_detach(client);
}

TEST_F(CapiTest, AReleaseTellsHowFarTheLeaseWasRead) {
  StartDaemon();
  prefixd_client* client = Attach();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1), back(2);
  prefixd_space* space = engine.Open(client);
  ASSERT_EQ(engine.Store(space, nullptr), PREFIXD_OK);
  const prefixd_planes k = Engine::PlanesOf(&back.key), v = Engine::PlanesOf(&back.value);
  const auto used_after = [&](uint32_t gathered, const prefixd_used* used) {
    const uint64_t before = Ctl({"status"})["counters"].value("tokens.used", uint64_t{0});
    prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, nullptr, nullptr);
    EXPECT_EQ(prefixd_wait_all(lease, 0), kTokens);
    prefixd_stored_run runs[2] = {};
    EXPECT_EQ(prefixd_stored_runs(lease, 0, runs, 2), 1u);
    EXPECT_EQ(runs[0].end, kTokens);
    EXPECT_EQ(prefixd_stored_runs(lease, 0, nullptr, 0), 1u);
    EXPECT_EQ(prefixd_gather(lease, 0, 0, gathered, &k, &v), PREFIXD_OK);
    prefixd_release(lease, used);
    while (Ctl({"status"})["leases"] != 0) {
    }
    const uint64_t after = Ctl({"status"})["counters"]["tokens.used"];
    return after - before;
  };
  prefixd_used used = PREFIXD_INIT(prefixd_used);
  EXPECT_EQ(used_after(0, nullptr), 0u);
  EXPECT_EQ(used_after(150, nullptr), 150u);
  EXPECT_EQ(used_after(150, &used), 150u);
  used.used_tokens = 20;
  EXPECT_EQ(used_after(150, &used), 20u);
  used.used_tokens = PREFIXD_NONE_USED;
  EXPECT_EQ(used_after(150, &used), 0u);
  EXPECT_EQ(prefixd_stored_runs(nullptr, 0, nullptr, 0), 0u);
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, BlocksOfALeaseHaveNamesThatStayTheSame) {
  StartDaemon();
  prefixd_client* client = Attach();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1);
  prefixd_space* space = engine.Open(client);
  ASSERT_EQ(engine.Store(space, nullptr), PREFIXD_OK);
  const auto named = [](prefixd_page_name name) { return std::pair(name.high, name.low); };
  std::set<std::pair<uint64_t, uint64_t>> all;
  size_t count = 0;
  for (int time = 0; time < 2; ++time) {
    prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, nullptr, nullptr);
    const prefixd_block* blocks = nullptr;
    count = prefixd_table(lease, 0, &blocks);
    std::vector<prefixd_page_name> names(count + 1, {1, 2});
    EXPECT_EQ(prefixd_page_names(lease, 0, names.data(), count), count);
    EXPECT_EQ(named(names[count]), std::pair(uint64_t{1}, uint64_t{2})) << "beyond the capacity";
    EXPECT_EQ(prefixd_page_names(lease, 0, nullptr, 0), count);
    EXPECT_EQ(prefixd_page_names(lease, 99, names.data(), count), 0u);
    for (size_t i = 0; i < count; ++i) all.insert(named(names[i]));
    prefixd_arena arena = PREFIXD_INIT(prefixd_arena);
    EXPECT_EQ(prefixd_lease_arena(lease, &arena), PREFIXD_OK);
    EXPECT_EQ(static_cast<const std::byte*>(arena.base) + blocks->arena_offset, blocks->units);
    const uint64_t slab = blocks->arena_offset / arena.slab_bytes;
    EXPECT_EQ(arena.service[slab * arena.service_stride] % 2, 1u);
    EXPECT_LT(blocks->arena_offset, arena.bytes);
    const auto* const service = arena.service + slab * arena.service_stride;
    prefixd_release(lease, nullptr);
    EXPECT_EQ(*service % 2, 1u) << "the mapping stays";
    EXPECT_EQ(arena.tell(arena.teller, slab, 1, 1), 1);
    EXPECT_EQ(arena.tell(arena.teller, slab, 1, 0), 1);
    const auto tell = arena.tell;
    if (time == 1) arena.size = offsetof(prefixd_arena, tell);  // a caller of version 15
    prefixd_drop_arena(&arena);
    EXPECT_EQ(arena.base, nullptr);
    EXPECT_EQ(arena.tell, time == 1 ? tell : nullptr);
  }
  EXPECT_GT(count, 1u);
  EXPECT_EQ(all.size(), count);
  EXPECT_FALSE(all.contains({0, 0}));
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, AHintSaysHowManyTokensWillBeThere) {
  StartDaemon();
  prefixd_client* client = Attach();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1);
  prefixd_space* space = engine.Open(client);
  const uint32_t* tokens = engine.tokens.data();
  uint32_t there = 7;
  EXPECT_EQ(prefixd_prefetch(space, tokens, kTokens, nullptr, &there), PREFIXD_OK);
  EXPECT_EQ(there, 0u);
  ASSERT_EQ(engine.Store(space, nullptr), PREFIXD_OK);
  prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
  lookup.max_cached_tokens = kTokens - 1;
  EXPECT_EQ(prefixd_prefetch(space, tokens, kTokens, &lookup, &there), PREFIXD_OK)
      << prefixd_last_error();
  EXPECT_EQ(there, kTokens - 1);
  EXPECT_EQ(prefixd_prefetch(space, tokens, kTokens, nullptr, nullptr), PREFIXD_OK);
  EXPECT_EQ(prefixd_prefetch(space, nullptr, 1, nullptr, &there), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(there, 0u);
  EXPECT_EQ(prefixd_prefetch(nullptr, tokens, kTokens, nullptr, &there), PREFIXD_UNAVAILABLE);
  EXPECT_STREQ(prefixd_last_error(), "prefetch: no space");
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, PagesAreCopiedThroughTheSocketWhereMemoryIsNotShared) {
  StartDaemon();
  prefixd_client* client = Attach(/*arena=*/false);
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1), back(2);
  prefixd_space* space = engine.Open(client);
  ASSERT_EQ(engine.Store(space, nullptr), PREFIXD_OK);
  prefixd_match_info match = PREFIXD_INIT(prefixd_match_info);
  prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
  lookup.max_cached_tokens = kTokens - 1;
  prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, &lookup, &match);
  EXPECT_EQ(match.kind, uint32_t{PREFIXD_EXACT});
  EXPECT_EQ(match.in_place, 0u);
  EXPECT_STREQ(match.why_shorter, "max_tokens 1");
  ASSERT_EQ(prefixd_wait(lease, 0, 0), kTokens - 1);
  EXPECT_EQ(prefixd_restorable_tokens(lease), kTokens - 1);
  prefixd_planes k = Engine::PlanesOf(&back.key), v = Engine::PlanesOf(&back.value);
  k.codes_head_stride = v.codes_head_stride = kTokens * kDim * 2;  // room for one more
  ASSERT_EQ(prefixd_gather(lease, 0, 0, kTokens - 1, &k, &v), PREFIXD_OK);
  EXPECT_TRUE(std::equal(back.key.begin(), back.key.begin() + (kTokens - 1) * kDim * 2,
                         engine.key.begin()));
  EXPECT_EQ(prefixd_gather(lease, 0, 0, kTokens, &k, &v), PREFIXD_FAILED_PRECONDITION);
  EXPECT_NE(prefixd_last_error()[0], '\0');
  prefixd_release(lease, nullptr);

  prefixd_counts counts = PREFIXD_INIT(prefixd_counts);
  prefixd_stats(client, &counts);
  EXPECT_EQ(counts.attached, 1u);
  EXPECT_EQ(counts.arena_bytes, 0u);
  EXPECT_EQ(counts.lookups, 1u);
  EXPECT_EQ(counts.restorable_tokens, kTokens - 1);
  EXPECT_EQ(counts.stored_tokens, kTokens);
  EXPECT_EQ(counts.gathered_bytes, (kTokens - 1) * kHeads * kDim * 2 * 2);
  EXPECT_EQ(prefixd_match(space, engine.tokens.data(), kTokens, nullptr, &match), PREFIXD_OK);
  EXPECT_EQ(match.restorable_tokens, kTokens);
  prefixd_space_facts facts = PREFIXD_INIT(prefixd_space_facts);
  prefixd_describe_space(space, &facts);
  EXPECT_EQ(facts.block_tokens, 64u);
  EXPECT_EQ(facts.payload_bytes_per_token, kHeads * kDim * 2 * 2);
  EXPECT_EQ(std::string(facts.id).size(), 64u);
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, ElementsGoInAndComeOutAsTheirCodesSay) {
  StartDaemon();
  prefixd_client* client = Attach();
  ASSERT_EQ(prefixd_attached(client, 20'000), 1);
  Engine engine(1);
  prefixd_close_space(engine.Open(client));
  engine.format.key = engine.format.value = {PREFIXD_MLX_AFFINE, PREFIXD_F32, 8, 0, 64, 0};
  prefixd_space* space = prefixd_open_space(client, &engine.spec);
  ASSERT_NE(space, nullptr) << prefixd_last_error();
  // [tokens][heads][dim], as engines keep them that compute token by token.
  std::vector<float> key(kTokens * kHeads * kDim), value(key.size());
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<float>(i * 37 % 256) - 100;  // each group has all codes: nothing is lost
    value[i] = 3.0f;
  }
  for (size_t row = 0; row < key.size(); row += kDim) key[row] = -100, key[row + 1] = 155;
  const auto rows_of = [](std::vector<float>* data) {
    prefixd_rows rows = PREFIXD_INIT(prefixd_rows);
    rows.data = data->data();
    rows.dtype = PREFIXD_F32;
    rows.head_stride = kDim * sizeof(float);
    rows.token_stride = kHeads * kDim * sizeof(float);
    return rows;
  };
  prefixd_rows k = rows_of(&key), v = rows_of(&value);
  prefixd_plan* plan = prefixd_reserve(space, engine.tokens.data(), kTokens, nullptr);
  EXPECT_EQ(prefixd_write_rows(plan, 0, 0, kTokens, &k, &v), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(prefixd_commit(plan, kTokens, nullptr, nullptr), PREFIXD_OK) << prefixd_last_error();
  prefixd_abandon(plan);
  prefixd_lease* lease = prefixd_acquire(space, engine.tokens.data(), kTokens, nullptr, nullptr);
  ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
  std::vector<float> got_key(key.size()), got_value(key.size());
  k = rows_of(&got_key), v = rows_of(&got_value);
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 0, kTokens, &k, &v), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(got_key, key);
  EXPECT_EQ(got_value, value);
  k.token_stride += 2;
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 0, kTokens, &k, &v), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(), "rows: a stride is no multiple of an element's size");
  k.token_stride -= 2;
  k.dtype = 0;
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 0, kTokens, &k, &v), PREFIXD_INVALID_ARGUMENT);
  k.dtype = 256 + PREFIXD_F32;
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 0, kTokens, &k, &v), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 0, kTokens, nullptr, &v), PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(prefixd_gather_rows(lease, 0, 1, kTokens, &v, &v), PREFIXD_FAILED_PRECONDITION);
  EXPECT_NE(prefixd_gather_rows(nullptr, 0, 0, 1, &v, &v), PREFIXD_OK);
  EXPECT_NE(prefixd_write_rows(nullptr, 0, 0, 1, &v, &v), PREFIXD_OK);
  prefixd_release(lease, nullptr);
  prefixd_close_space(space);
  prefixd_detach(client);
}

TEST_F(CapiTest, ErrorsAreSentencesAndNothingWorse) {
  prefixd_client* client = Attach();
  Engine engine(1);
  EXPECT_EQ(prefixd_open_space(nullptr, &engine.spec), nullptr);
  EXPECT_EQ(prefixd_open_space(client, nullptr), nullptr);
  EXPECT_EQ(prefixd_open_space(client, &engine.spec), nullptr) << "no layers";
  const std::string told = prefixd_last_error();
  EXPECT_NE(told, "");
  EXPECT_EQ(prefixd_last_status(), PREFIXD_INVALID_ARGUMENT);
  prefixd_release(nullptr, nullptr);
  prefixd_abandon(nullptr);
  prefixd_close_space(nullptr);
  prefixd_detach(nullptr);
  EXPECT_EQ(prefixd_last_error(), told) << "a garbage collector frees between any two calls";
  EXPECT_EQ(prefixd_last_status(), PREFIXD_INVALID_ARGUMENT);
  prefixd_close_space(engine.Open(client));
  EXPECT_STREQ(prefixd_last_error(), "") << "nothing went wrong in the last call";
  EXPECT_EQ(prefixd_last_status(), PREFIXD_OK);
  engine.format.key = engine.format.value = {PREFIXD_MLX_AFFINE, PREFIXD_F16, 8, 0, 48, 0};
  EXPECT_EQ(prefixd_open_space(client, &engine.spec), nullptr);
  EXPECT_NE(std::string(prefixd_last_error()).find("layer 0, format 0 (mlx_affine/8/48"),
            std::string::npos)
      << prefixd_last_error();
  EXPECT_EQ(prefixd_row_bytes(&engine.format.key, 64).codes, 0u);
  engine.format.key.group_size = 64;
  EXPECT_EQ(prefixd_row_bytes(&engine.format.key, 64).scales, 2u);
  uint8_t digest[32];
  EXPECT_EQ(prefixd_digest_file("/nonexistent", digest), PREFIXD_NOT_FOUND);
  EXPECT_NE(prefixd_digest_checkpoint("/nonexistent", digest), PREFIXD_OK);
  EXPECT_NE(prefixd_digest_checkpoint(nullptr, digest), PREFIXD_OK);
  std::string elsewhere = "nothing";
  std::thread([&] { elsewhere = prefixd_last_error(); }).join();
  EXPECT_EQ(elsewhere, "") << "an error is its thread's";
  prefixd_detach(client);
}

TEST_F(CapiTest, NoHandleIsAHandleThatHasNothing) {
  const uint32_t token = 1;
  prefixd_match_info match = PREFIXD_INIT(prefixd_match_info);
  prefixd_counts counts = PREFIXD_INIT(prefixd_counts);
  prefixd_space_facts facts = PREFIXD_INIT(prefixd_space_facts);
  const prefixd_block* blocks = nullptr;
  prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
  EXPECT_EQ(prefixd_attached(nullptr, 0), 0);
  prefixd_stats(nullptr, &counts);
  prefixd_stats(nullptr, nullptr);
  prefixd_describe_space(nullptr, &facts);
  EXPECT_EQ(prefixd_match(nullptr, &token, 1, nullptr, &match), PREFIXD_UNAVAILABLE);
  EXPECT_EQ(prefixd_acquire(nullptr, &token, 1, nullptr, &match), nullptr);
  EXPECT_EQ(prefixd_last_status(), PREFIXD_UNAVAILABLE);
  EXPECT_STREQ(prefixd_last_error(), "acquire: no space");
  EXPECT_EQ(match.kind, uint32_t{PREFIXD_NONE});
  EXPECT_EQ(prefixd_restorable_tokens(nullptr), 0u);
  EXPECT_EQ(prefixd_wait(nullptr, 0, 0), 0u);
  EXPECT_EQ(prefixd_wait_all(nullptr, 0), 0u);
  EXPECT_NE(prefixd_gather(nullptr, 0, 0, 1, &planes, &planes), PREFIXD_OK);
  EXPECT_EQ(prefixd_gather(nullptr, 0, 0, 0, nullptr, nullptr), PREFIXD_OK) << "0 tokens of none";
  EXPECT_EQ(prefixd_table(nullptr, 0, &blocks), 0u);
  EXPECT_EQ(prefixd_page_names(nullptr, 0, nullptr, 0), 0u);
  prefixd_arena arena = PREFIXD_INIT(prefixd_arena);
  EXPECT_EQ(prefixd_lease_arena(nullptr, &arena), PREFIXD_NOT_FOUND);
  EXPECT_EQ(arena.base, nullptr);
  EXPECT_EQ(prefixd_lease_arena(nullptr, nullptr), PREFIXD_INVALID_ARGUMENT);
  arena.size = offsetof(prefixd_arena, mapping);
  EXPECT_EQ(prefixd_lease_arena(nullptr, &arena), PREFIXD_INVALID_ARGUMENT)
      << "would not be dropped";
  prefixd_drop_arena(&arena);
  prefixd_drop_arena(nullptr);
  EXPECT_EQ(prefixd_reserve(nullptr, &token, 1, nullptr), nullptr);
  EXPECT_EQ(prefixd_last_status(), PREFIXD_UNAVAILABLE);
  EXPECT_STREQ(prefixd_last_error(), "reserve: no space");
  EXPECT_EQ(prefixd_missing(nullptr, nullptr, 0), 0u);
  EXPECT_NE(prefixd_write_packed(nullptr, 0, 0, 1, &planes, &planes), PREFIXD_OK);
  EXPECT_NE(prefixd_commit(nullptr, 1, nullptr, nullptr), PREFIXD_OK);
  EXPECT_NE(prefixd_attend(nullptr, 0, nullptr, 1, nullptr, nullptr, nullptr), PREFIXD_OK);
  prefixd_release(nullptr, nullptr);
  prefixd_abandon(nullptr);
  prefixd_close_space(nullptr);
  prefixd_detach(nullptr);
}

TEST_F(CapiTest, StructsGrowAtTheirEnds) {
  // Of a later version: what this library does not know must not be asked for.
  struct Later {
    prefixd_options options = PREFIXD_INIT(prefixd_options);
    uint64_t more = 0;
  } later;
  later.options.size = sizeof(Later);
  prefixd_client* client = prefixd_attach(&later.options);
  EXPECT_NE(client, nullptr);
  prefixd_detach(client);
  later.more = 1;
  EXPECT_EQ(prefixd_attach(&later.options), nullptr);
  EXPECT_NE(std::string(prefixd_last_error()).find("too old"), std::string::npos);
  later.options.size = 3;
  EXPECT_EQ(prefixd_attach(&later.options), nullptr) << "no size at all";
  // Of an earlier one: fewer members, and not one byte beyond them is written.
  prefixd_counts counts = PREFIXD_INIT(prefixd_counts);
  counts.size = offsetof(prefixd_counts, failed_lookups);
  counts.failed_lookups = 77;
  prefixd_stats(nullptr, &counts);
  EXPECT_EQ(counts.failed_lookups, 77u);
  EXPECT_EQ(counts.size, offsetof(prefixd_counts, failed_lookups));
}

}  // namespace
