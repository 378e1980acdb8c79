// Layers that slide, keep a state or share another's cache, and sets of spaces, through the C
// functions and the real prefixd.
#include <cstring>
#include <span>
#include <vector>

#include "prefixd.h"
#include "tests/e2e/fixture.h"

namespace {

using prefixd::testing::EndToEndTest;

constexpr uint32_t kTokens = 400, kHeads = 2, kDim = 64, kWindow = 100, kSinks = 4;
constexpr size_t kRow = kDim * 2, kStateBytes = 1000;
using Rows = std::vector<uint8_t>;  // [kHeads][tokens][kRow]

class KindsTest : public EndToEndTest {
 protected:
  void SetUp() override {
    StartDaemon(flags());
    for (uint32_t i = 0; i < kTokens; ++i) tokens_.push_back(i * 31 % 1009);
    const std::string where = address();
    prefixd_options options = PREFIXD_INIT(prefixd_options);
    options.address = where.c_str();
    client_ = prefixd_attach(&options);
    ASSERT_EQ(prefixd_attached(client_, 20'000), 1);
  }
  void TearDown() override {
    prefixd_close_space(space_);
    prefixd_detach(client_);
  }

  virtual std::vector<std::string> flags() const { return {}; }

  prefixd_layer Layer(uint32_t kind) {
    prefixd_layer layer = PREFIXD_INIT(prefixd_layer);
    layer.kind = kind;
    if (kind == PREFIXD_STATE) {
      layer.state_bytes = kStateBytes;
      return layer;
    }
    format_.key = format_.value = {PREFIXD_RAW, PREFIXD_F16, 0, 0, 0, 0};
    layer.kv_heads = kHeads;
    layer.key_dim = layer.value_dim = kDim;
    layer.format_count = 1;
    layer.formats = &format_;
    if (kind == PREFIXD_SLIDING) {
      layer.window = kWindow;
      layer.sink_tokens = kSinks;
    }
    return layer;
  }
  static prefixd_space* OpenSpace(prefixd_client* client, const char* model,
                                  const std::vector<prefixd_layer>& layers) {
    prefixd_space_spec spec = PREFIXD_INIT(prefixd_space_spec);
    const uint8_t digest[32] = {5};
    spec.model = model;
    spec.weights_digest = digest;
    spec.layers = layers.data();
    spec.layer_count = static_cast<uint32_t>(layers.size());
    return prefixd_open_space(client, &spec);
  }
  void Open(const std::vector<uint32_t>& kinds) {
    kinds_ = kinds;
    std::vector<prefixd_layer> layers;
    for (const uint32_t kind : kinds) layers.push_back(Layer(kind));
    space_ = OpenSpace(client_, "kinds", layers);
    ASSERT_NE(space_, nullptr) << prefixd_last_error();
  }

  // Bytes that layer, side, head and position decide.
  static Rows RowsOf(uint32_t layer, uint32_t side, uint32_t begin, uint32_t count) {
    Rows rows(size_t{kHeads} * count * kRow);
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t i = 0; i < count; ++i) {
        uint32_t state = ((layer * 2 + side) * kHeads + head) * kTokens + begin + i;
        for (size_t byte = 0; byte < kRow; ++byte) {
          state = state * 1664525u + 1013904223u;
          rows[(head * count + i) * kRow + byte] = static_cast<uint8_t>(state >> 24);
        }
      }
    }
    return rows;
  }
  static std::vector<uint8_t> StateOf(uint32_t layer, uint32_t tokens) {
    std::vector<uint8_t> state(kStateBytes);
    uint32_t seed = layer * kTokens + tokens;
    for (uint8_t& byte : state) byte = static_cast<uint8_t>((seed = seed * 1664525u + 1) >> 24);
    return state;
  }
  static prefixd_planes PlanesOf(Rows& rows) {
    prefixd_planes planes = PREFIXD_INIT(prefixd_planes);
    planes.codes = rows.data();
    return planes;
  }
  std::vector<uint32_t> Wanted(const prefixd_plan* plan) {
    std::vector<uint32_t> wanted(prefixd_snapshots_wanted(plan, nullptr, 0));
    EXPECT_EQ(prefixd_snapshots_wanted(plan, wanted.data(), wanted.size()), wanted.size());
    return wanted;
  }
  // Everything that the plan asks for.
  void Store(uint32_t count = kTokens) {
    prefixd_plan* plan = prefixd_reserve(space_, tokens_.data(), count, nullptr);
    const std::vector<uint32_t> wanted = Wanted(plan);
    for (uint32_t layer = 0; layer < kinds_.size(); ++layer) {
      if (kinds_[layer] == PREFIXD_STATE) {
        for (const uint32_t at : wanted) {
          const std::vector<uint8_t> state = StateOf(layer, at);
          ASSERT_EQ(prefixd_put_state(plan, layer, at, state.data(), state.size()), PREFIXD_OK)
              << prefixd_last_error();
        }
        continue;
      }
      Rows k = RowsOf(layer, 0, 0, count), v = RowsOf(layer, 1, 0, count);
      const prefixd_planes key = PlanesOf(k), value = PlanesOf(v);
      ASSERT_EQ(prefixd_write_packed(plan, layer, 0, count, &key, &value), PREFIXD_OK)
          << prefixd_last_error();
    }
    prefixd_commit_options options = PREFIXD_INIT(prefixd_commit_options);
    options.sequence_end = 1;
    EXPECT_EQ(prefixd_commit(plan, count, &options, nullptr), PREFIXD_OK) << prefixd_last_error();
    prefixd_abandon(plan);
  }
  // Of at most `limit` tokens so many are restored, and all that a layer needs there is right.
  void ExpectRestored(uint32_t limit, uint32_t restorable) {
    SCOPED_TRACE("at most " + std::to_string(limit));
    prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
    lookup.max_cached_tokens = limit;
    prefixd_lease* lease = prefixd_acquire(space_, tokens_.data(), kTokens, &lookup, nullptr);
    ASSERT_EQ(prefixd_wait_all(lease, 0), restorable);
    for (uint32_t layer = 0; layer < kinds_.size() && restorable > 0; ++layer) {
      if (kinds_[layer] == PREFIXD_STATE) {
        std::vector<uint8_t> state(kStateBytes);
        EXPECT_EQ(prefixd_get_state(lease, layer, state.data(), state.size()), PREFIXD_OK);
        EXPECT_EQ(state, StateOf(layer, restorable)) << "layer " << layer;
        continue;
      }
      const bool cut = kinds_[layer] == PREFIXD_SLIDING && restorable > kWindow + kSinks;
      if (cut) ExpectGathered(lease, layer, 0, kSinks);
      ExpectGathered(lease, layer, cut ? restorable - kWindow : 0, restorable);
    }
    prefixd_release(lease, nullptr);
  }
  static void ExpectGathered(prefixd_lease* lease, uint32_t layer, uint32_t begin, uint32_t end) {
    const uint32_t count = end - begin;
    Rows k(size_t{kHeads} * count * kRow), v = k;
    const prefixd_planes key = PlanesOf(k), value = PlanesOf(v);
    ASSERT_EQ(prefixd_gather(lease, layer, begin, count, &key, &value), PREFIXD_OK)
        << prefixd_last_error();
    EXPECT_TRUE(k == RowsOf(layer, 0, begin, count)) << "layer " << layer;
    EXPECT_TRUE(v == RowsOf(layer, 1, begin, count)) << "layer " << layer;
  }

  std::vector<uint32_t> tokens_, kinds_;
  prefixd_format format_{};
  prefixd_client* client_ = nullptr;
  prefixd_space* space_ = nullptr;
};

TEST_F(KindsTest, OfASlidingLayerTheSinksAndTheWindowComeBackWhereverItIsCut) {
  Open({PREFIXD_FULL, PREFIXD_SLIDING});
  Store();
  for (const uint32_t limit : {kTokens, kTokens - 1, 250u, 90u}) ExpectRestored(limit, limit);
  prefixd_lease* lease = prefixd_acquire(space_, tokens_.data(), kTokens, nullptr, nullptr);
  ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
  const prefixd_block* blocks = nullptr;
  ASSERT_EQ(prefixd_table(lease, 1, &blocks), 7u);
  EXPECT_NE(blocks[0].units, nullptr) << "the sinks";
  EXPECT_EQ(blocks[1].units, nullptr) << "neither";
  EXPECT_NE(blocks[6].units, nullptr) << "the window";
  Rows room(size_t{kHeads} * 50 * kRow);
  const prefixd_planes planes = PlanesOf(room);
  EXPECT_EQ(prefixd_gather(lease, 1, 100, 50, &planes, &planes), PREFIXD_FAILED_PRECONDITION);

  // Attention over sinks and window reads nothing between them.
  std::vector<float> q(kDim, 0), out(kDim);
  prefixd_attend_options options = PREFIXD_INIT(prefixd_attend_options);
  options.query_heads = options.kv_heads = 1;
  options.key_dim = options.value_dim = kDim;
  options.first_position = kTokens - 1;
  options.scale = 1;
  EXPECT_NE(prefixd_attend(blocks, 7, &format_, 1, q.data(), out.data(), &options), PREFIXD_OK)
      << "without the window blocks are missing";
  options.window = kWindow;
  options.sink_tokens = kSinks;
  EXPECT_EQ(prefixd_attend(blocks, 7, &format_, 1, q.data(), out.data(), &options), PREFIXD_OK)
      << prefixd_last_error();
  prefixd_release(lease, nullptr);
}

TEST_F(KindsTest, OfAStateLayerASnapshotComesBackAtItsExactPosition) {
  Open({PREFIXD_FULL, PREFIXD_STATE, PREFIXD_SLIDING, PREFIXD_STATE});
  Store();
  ExpectRestored(kTokens - 1, kTokens - 1);  // an exact repeat, all but its last token
  prefixd_plan* plan = prefixd_reserve(space_, tokens_.data(), kTokens, nullptr);
  const std::vector<uint32_t> wanted = Wanted(plan);
  prefixd_abandon(plan);
  prefixd_match_info match = PREFIXD_INIT(prefixd_match_info);
  prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
  lookup.max_cached_tokens = kTokens - 2;
  ASSERT_EQ(prefixd_match(space_, tokens_.data(), kTokens, &lookup, &match), PREFIXD_OK);
  EXPECT_LT(match.restorable_tokens, kTokens - 2) << "a state is never cut";
  EXPECT_NE(std::string(match.why_shorter).find("no_state_snapshot"), std::string::npos)
      << match.why_shorter;
}

TEST_F(KindsTest, MistakesAreSentences) {
  Open({PREFIXD_FULL, PREFIXD_STATE});
  const auto told = [](prefixd_status status) {
    EXPECT_EQ(status, PREFIXD_INVALID_ARGUMENT);
    return std::string(prefixd_last_error());
  };
  const std::vector<uint8_t> state(kStateBytes);
  prefixd_plan* plan = prefixd_reserve(space_, tokens_.data(), kTokens, nullptr);
  EXPECT_EQ(told(prefixd_put_state(plan, 0, 10, state.data(), kStateBytes)),
            "put_state: layer 0 keeps a state of 0 bytes, 1000 were given");
  EXPECT_EQ(told(prefixd_put_state(plan, 1, 401, state.data(), kStateBytes)),
            "put_state: at token 401, must be 1 to 400");
  EXPECT_EQ(told(prefixd_put_state(plan, 1, 10, nullptr, kStateBytes)), "put_state: no state");
  prefixd_abandon(plan);
  EXPECT_EQ(prefixd_snapshots_wanted(nullptr, nullptr, 0), 0u);
  EXPECT_NE(prefixd_put_state(nullptr, 1, 10, state.data(), kStateBytes), PREFIXD_OK);
  std::vector<uint8_t> room(kStateBytes);
  EXPECT_NE(prefixd_get_state(nullptr, 1, room.data(), kStateBytes), PREFIXD_OK);
  EXPECT_EQ(told(prefixd_get_state(nullptr, 1, nullptr, 0)), "get_state: no room for a state");
  // Another kind than this library knows, and a member that a kind does not have.
  prefixd_layer layer = Layer(PREFIXD_FULL);
  layer.kind = 4;
  EXPECT_EQ(OpenSpace(client_, "kinds", {layer}), nullptr);
  EXPECT_STREQ(prefixd_last_error(), "open_space: a layer's kind is not known to this library");
  layer.kind = PREFIXD_FULL;
  layer.window = 10;
  EXPECT_EQ(OpenSpace(client_, "kinds", {layer}), nullptr);
  EXPECT_NE(std::string(prefixd_last_error()).find("window"), std::string::npos)
      << prefixd_last_error();
}

TEST_F(KindsTest, WithoutStoredValuesKeysAloneComeAndGo) {
  for (const uint32_t values : {PREFIXD_VALUES_NONE, PREFIXD_VALUES_KEY_PREFIX}) {
    prefixd_layer layer = Layer(PREFIXD_FULL);
    layer.values = values;
    layer.value_dim = values == PREFIXD_VALUES_NONE ? 0 : kDim / 2;
    prefixd_space* space = OpenSpace(client_, "keys", {layer});
    ASSERT_NE(space, nullptr) << prefixd_last_error();
    prefixd_space_facts facts = PREFIXD_INIT(prefixd_space_facts);
    prefixd_describe_space(space, &facts);
    EXPECT_EQ(facts.payload_bytes_per_token, kHeads * kRow);
    prefixd_plan* plan = prefixd_reserve(space, tokens_.data(), kTokens, nullptr);
    Rows k = RowsOf(0, 0, 0, kTokens);
    const prefixd_planes key = PlanesOf(k);
    ASSERT_EQ(prefixd_write_packed(plan, 0, 0, kTokens, &key, nullptr), PREFIXD_OK)
        << prefixd_last_error();
    EXPECT_EQ(prefixd_commit(plan, kTokens, nullptr, nullptr), PREFIXD_OK);
    prefixd_abandon(plan);
    prefixd_lease* lease = prefixd_acquire(space, tokens_.data(), kTokens, nullptr, nullptr);
    ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
    Rows back(k.size());
    const prefixd_planes room = PlanesOf(back);
    EXPECT_EQ(prefixd_gather(lease, 0, 0, kTokens, &room, nullptr), PREFIXD_OK)
        << prefixd_last_error();
    EXPECT_TRUE(back == k);
    prefixd_release(lease, nullptr);
    prefixd_close_space(space);
  }
}

// A caller that was built before layers had kinds.
TEST_F(KindsTest, ALayerOfTheFirstVersionIsFullAttention) {
  prefixd_layer layer = Layer(PREFIXD_FULL);
  layer.size = offsetof(prefixd_layer, kind);
  layer.kind = layer.window = layer.sink_tokens = 77;  // not the library's to read
  space_ = OpenSpace(client_, "kinds", {layer});
  ASSERT_NE(space_, nullptr) << prefixd_last_error();
  kinds_ = {PREFIXD_FULL};
  Store();
  ExpectRestored(77, 77);
}

TEST_F(KindsTest, ALayerThatSharesReadsWhatAnotherOneStored) {
  kinds_ = {PREFIXD_FULL};
  prefixd_layer shared = PREFIXD_INIT(prefixd_layer);
  shared.shared = 1;
  shared.reads_layer = 0;
  space_ = OpenSpace(client_, "shared", {Layer(PREFIXD_FULL), shared});
  ASSERT_NE(space_, nullptr) << prefixd_last_error();
  Store();
  prefixd_lease* lease = prefixd_acquire(space_, tokens_.data(), kTokens, nullptr, nullptr);
  ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
  Rows k(size_t{kHeads} * kTokens * kRow), v = k;
  const prefixd_planes key = PlanesOf(k), value = PlanesOf(v);
  ASSERT_EQ(prefixd_gather(lease, 1, 0, kTokens, &key, &value), PREFIXD_OK);
  EXPECT_TRUE(k == RowsOf(0, 0, 0, kTokens) && v == RowsOf(0, 1, 0, kTokens));
  const prefixd_block *own = nullptr, *read = nullptr;
  ASSERT_EQ(prefixd_table(lease, 0, &own), prefixd_table(lease, 1, &read));
  EXPECT_EQ(own[0].units, read[0].units);
  prefixd_release(lease, nullptr);

  shared.reads_layer = 2;
  EXPECT_EQ(OpenSpace(client_, "shared", {Layer(PREFIXD_FULL), shared}), nullptr);
  EXPECT_NE(std::string(prefixd_last_error()).find("layer 1"), std::string::npos)
      << prefixd_last_error();
  shared.reads_layer = ~uint32_t{0};
  EXPECT_EQ(OpenSpace(client_, "shared", {Layer(PREFIXD_FULL), shared}), nullptr);
  EXPECT_STREQ(prefixd_last_error(), "open_space: reads_layer is not a layer of any space");
}

TEST_F(KindsTest, ASetBeginsAtTheLengthThatAllOfItsSpacesHave) {
  Open({PREFIXD_FULL, PREFIXD_FULL});
  Store(200);
  prefixd_space* const draft = space_;
  kinds_ = {PREFIXD_FULL};
  space_ = OpenSpace(client_, "target", {Layer(PREFIXD_FULL)});
  Store();
  prefixd_lookup lookup = PREFIXD_LOOKUP_INIT;
  lookup.deadline_ms = 5'000;
  prefixd_set_member member = PREFIXD_INIT(prefixd_set_member);
  std::vector<prefixd_set_member> members(2, member);
  members[0].space = draft;
  members[1].space = space_;
  members[1].lookup = &lookup;
  prefixd_lease* leases[2] = {};
  std::vector<prefixd_match_info> matches(2, PREFIXD_INIT(prefixd_match_info));
  ASSERT_EQ(prefixd_acquire_set(members.data(), 2, tokens_.data(), kTokens, leases, matches.data()),
            PREFIXD_OK)
      << prefixd_last_error();
  for (const size_t i : {0u, 1u}) {
    EXPECT_EQ(matches[i].restorable_tokens, 200u);
    EXPECT_EQ(matches[i].matched_tokens, i == 0 ? 200u : kTokens);
    ASSERT_EQ(prefixd_wait_all(leases[i], 0), 200u);
    ExpectGathered(leases[i], 0, 0, 200);
    prefixd_release(leases[i], nullptr);
  }
  EXPECT_NE(std::string(matches[1].why_shorter).find("common_length 200"), std::string::npos)
      << matches[1].why_shorter;
  lookup.max_cached_tokens = 150;  // of the target alone: the draft goes no further
  ASSERT_EQ(prefixd_acquire_set(members.data(), 2, tokens_.data(), kTokens, leases, nullptr),
            PREFIXD_OK);
  for (prefixd_lease* const lease : leases) {
    EXPECT_EQ(prefixd_wait_all(lease, 0), 150u);
    prefixd_release(lease, nullptr);
  }
  prefixd_close_space(draft);
}

TEST_F(KindsTest, ASetThatCannotBeIsToldAndLeasesNothing) {
  Open({PREFIXD_FULL});
  std::vector<prefixd_set_member> members(2, PREFIXD_INIT(prefixd_set_member));
  prefixd_lease* leases[2] = {};
  const auto acquire = [&](size_t count) {
    return prefixd_acquire_set(members.data(), count, tokens_.data(), kTokens, leases, nullptr);
  };
  EXPECT_EQ(acquire(0), PREFIXD_OK);
  EXPECT_EQ(acquire(65), PREFIXD_INVALID_ARGUMENT);
  members[0].space = space_;
  EXPECT_EQ(acquire(2), PREFIXD_UNAVAILABLE) << "as with a space that could not be opened";
  EXPECT_EQ(leases[0], nullptr);
  prefixd_client* other = prefixd_attach(nullptr);
  members[1].space = OpenSpace(other, "kinds", {Layer(PREFIXD_FULL)});
  ASSERT_NE(members[1].space, nullptr);
  EXPECT_EQ(acquire(2), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(), "acquire_set: the spaces are of several clients");
  prefixd_close_space(members[1].space);
  prefixd_detach(other);
  members[1].size = 4;
  EXPECT_EQ(acquire(2), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(), "acquire_set: members differ in size");
}

// A daemon that advises the next coarser format once a fifth of its RAM is in use.
class AdviceTest : public KindsTest {
 protected:
  AdviceTest() { ram_ = "32MiB"; }
  std::vector<std::string> flags() const override { return {"--coarser-above", "20%"}; }
};

TEST_F(AdviceTest, RunsSayWhichFormatIsToBeWrittenWhileItIsAdvised) {
  const prefixd_tensor_format f32 = {PREFIXD_RAW, PREFIXD_F32, 0, 0, 0, 0};
  const prefixd_tensor_format f16 = {PREFIXD_RAW, PREFIXD_F16, 0, 0, 0, 0};
  const prefixd_format formats[2] = {{f32, f32}, {f16, f16}};
  prefixd_layer layer = Layer(PREFIXD_FULL);
  layer.format_count = 2;
  layer.formats = formats;
  space_ = OpenSpace(client_, "advice", {layer});
  ASSERT_NE(space_, nullptr) << prefixd_last_error();
  prefixd_reserve_options options = PREFIXD_INIT(prefixd_reserve_options);
  options.coarser_formats = 1u << 1;
  std::vector<uint32_t> seen;
  for (uint32_t turn = 0; turn < 100 && (seen.empty() || seen.back() == 0); ++turn) {
    tokens_[0] = 2'000 + turn;  // another sequence
    prefixd_plan* plan = prefixd_reserve(space_, tokens_.data(), kTokens, &options);
    std::vector<prefixd_run> runs(prefixd_missing(plan, nullptr, 0));
    std::vector<uint32_t> wanted(runs.size(), 9);
    ASSERT_FALSE(runs.empty()) << prefixd_last_error();
    prefixd_missing(plan, runs.data(), runs.size());
    ASSERT_EQ(prefixd_missing_formats(plan, wanted.data(), wanted.size()), runs.size());
    for (size_t i = 0; i < runs.size(); ++i) {
      const uint32_t count = runs[i].end - runs[i].begin;
      Rows rows = RowsOf(0, 0, runs[i].begin, count);
      if (wanted[i] == 0) rows.resize(2 * rows.size());
      const prefixd_planes planes = PlanesOf(rows);
      ASSERT_EQ(prefixd_write_packed(plan, 0, runs[i].begin, count, &planes, &planes), PREFIXD_OK);
      ASSERT_EQ(prefixd_commit(plan, runs[i].end, nullptr, nullptr), PREFIXD_OK)
          << prefixd_last_error();
    }
    seen.insert(seen.end(), wanted.begin(), wanted.end());
    prefixd_abandon(plan);
  }
  EXPECT_EQ(seen.front(), 0u);
  ASSERT_EQ(seen.back(), 1u) << "never advised";
  prefixd_lease* lease = prefixd_acquire(space_, tokens_.data(), kTokens, nullptr, nullptr);
  ASSERT_EQ(prefixd_wait_all(lease, 0), kTokens);
  const prefixd_block* blocks = nullptr;
  ASSERT_GT(prefixd_table(lease, 0, &blocks), 0u);
  EXPECT_EQ(blocks[0].format, 1u);
  Rows k(size_t{kHeads} * kTokens * kRow), v = k;
  const prefixd_planes key = PlanesOf(k), value = PlanesOf(v);
  ASSERT_EQ(prefixd_gather(lease, 0, 0, kTokens, &key, &value), PREFIXD_OK);
  EXPECT_TRUE(k == RowsOf(0, 0, 0, kTokens) && v == k);
  prefixd_release(lease, nullptr);
  EXPECT_EQ(prefixd_missing_formats(nullptr, nullptr, 0), 0u);
}

TEST_F(KindsTest, BlockFloatAndTransposedFormatsHaveTheirRows) {
  const prefixd_tensor_format mxfp4 = {PREFIXD_MXFP4, 0, 0, 0, 0, 0},
                              mxfp8 = {PREFIXD_MXFP8, 0, 0, 0, 0, 0},
                              nvfp4 = {PREFIXD_NVFP4, 0, 0, 0, 0, 0},
                              turned = {PREFIXD_RAW, PREFIXD_F16, 0, PREFIXD_TRANSPOSED, 0, 0};
  const auto row = [](const prefixd_tensor_format& format) {
    const prefixd_row bytes = prefixd_row_bytes(&format, kDim);
    return std::vector<uint32_t>{bytes.codes, bytes.scales, bytes.biases};
  };
  EXPECT_EQ(row(mxfp4), (std::vector<uint32_t>{32, 2, 0}));
  EXPECT_EQ(row(mxfp8), (std::vector<uint32_t>{64, 2, 0}));
  EXPECT_EQ(row(nvfp4), (std::vector<uint32_t>{32, 4, 0}));
  EXPECT_EQ(row(turned), (std::vector<uint32_t>{128, 0, 0}));
}

}  // namespace
