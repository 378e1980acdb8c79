// The functions of prefixd_llama.h against the real prefixd, with states that build 11549 of
// llama.cpp wrote (tests/data/llama).
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>

#include "prefixd_llama.h"
#include "tests/e2e/fixture.h"
#include "tests/support/gguf_file.h"

namespace {

using prefixd::testing::EndToEndTest;
using prefixd::testing::GgufFile;

std::string Blob(const std::string& name) {
  std::ifstream file(PREFIXD_TEST_DATA "/llama/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CapiLlamaTest : public EndToEndTest {
 protected:
  CapiLlamaTest() {
    GgufFile full;  // of tests/data/model
    full.Text("general.architecture", "llama").Text("general.name", "bible");
    full.Number("llama.attention.key_length", 64).Number("llama.attention.value_length", 64);
    Write("full.gguf", full);
    GgufFile sliding;
    sliding.Text("general.architecture", "gemma2").Number("gemma2.attention.key_length", 32);
    sliding.Number("gemma2.attention.value_length", 32);
    sliding.Number("gemma2.attention.sliding_window", 32);
    Write("sliding.gguf", sliding);
  }
  ~CapiLlamaTest() override { prefixd_detach(client_); }
  void Write(const std::string& name, const GgufFile& file) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << file.bytes();
  }
  prefixd_client* client() {
    const std::string where = address();
    prefixd_options options = PREFIXD_INIT(prefixd_options);
    options.address = where.c_str();
    if (client_ == nullptr) client_ = prefixd_attach(&options);
    return client_;
  }
  prefixd_llama* Open(const std::string& gguf, const std::string& state, const char* salt = nullptr,
                      const char* adapters = nullptr) {
    const std::string path = dir_ + "/" + gguf;
    prefixd_llama_spec spec = PREFIXD_INIT(prefixd_llama_spec);
    spec.gguf = path.c_str();
    spec.salt = salt;
    spec.adapters = adapters;
    spec.state = state.data();
    spec.state_bytes = state.size();
    return prefixd_llama_open(client(), &spec);
  }
  static std::vector<uint32_t> Tokens(size_t count) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 100);
    return tokens;
  }
  static prefixd_status Store(prefixd_llama* llama, size_t tokens, const std::string& state,
                              uint32_t* stored = nullptr) {
    prefixd_commit_info info = PREFIXD_INIT(prefixd_commit_info);
    const std::vector<uint32_t> named = Tokens(tokens);
    const prefixd_status status = prefixd_llama_store(llama, named.data(), tokens, state.data(),
                                                      state.size(), nullptr, &info);
    if (stored != nullptr) *stored = info.stored_tokens;
    return status;
  }
  // Returns the state that prefixd has of the first `tokens` tokens; "" if it has nothing.
  static std::string Restored(prefixd_llama* llama, size_t tokens) {
    const std::vector<uint32_t> named = Tokens(tokens);
    prefixd_lease* const lease =
        prefixd_acquire(prefixd_llama_space(llama), named.data(), tokens, nullptr, nullptr);
    const uint32_t count = prefixd_wait_all(lease, 0);
    std::string state(prefixd_llama_state_bytes(llama, count), '\xee');
    if (!state.empty()) {
      EXPECT_EQ(prefixd_llama_fill_state(llama, lease, state.data(), state.size()), PREFIXD_OK)
          << prefixd_last_error();
    }
    prefixd_release(lease, nullptr);
    return state;
  }

 private:
  prefixd_client* client_ = nullptr;
};

TEST_F(CapiLlamaTest, L3AStateComesBackByteForByteAndIsStoredOnce) {
  StartDaemon();
  const std::string state = Blob("f16_in_memory.bin");
  prefixd_llama* llama = Open("full.gguf", state);
  ASSERT_NE(llama, nullptr) << prefixd_last_error();
  EXPECT_EQ(Restored(llama, 4), "");
  uint32_t stored = 0;
  EXPECT_EQ(Store(llama, 4, state, &stored), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(stored, 4u);
  EXPECT_EQ(prefixd_llama_state_bytes(llama, 4), state.size());
  EXPECT_EQ(Restored(llama, 4), state);
  EXPECT_EQ(Restored(llama, 3).size(), prefixd_llama_state_bytes(llama, 3));
  EXPECT_EQ(Store(llama, 4, state, &stored), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(stored, 0u);
  prefixd_llama* salted = Open("full.gguf", state, "mine");
  prefixd_llama* adapted = Open("full.gguf", state, nullptr, "lora");
  EXPECT_EQ(Restored(salted, 4), "");
  EXPECT_EQ(Restored(adapted, 4), "");
  for (prefixd_llama* each : {llama, salted, adapted}) prefixd_llama_close(each);
}

TEST_F(CapiLlamaTest, L5AWindowIsRestoredBehindTheFirstOneAlone) {
  StartDaemon();
  const std::string state = Blob("sliding_in_memory.bin");
  prefixd_llama* llama = Open("sliding.gguf", state);
  ASSERT_NE(llama, nullptr) << prefixd_last_error();
  EXPECT_EQ(prefixd_llama_state_bytes(llama, 32), 0u);
  EXPECT_NE(std::string(prefixd_last_error()), "");
  EXPECT_GT(prefixd_llama_state_bytes(llama, 33), 0u);
  EXPECT_EQ(Store(llama, 40, state), PREFIXD_OK) << prefixd_last_error();
  const std::string restored = Restored(llama, 40);
  EXPECT_EQ(restored.size(), prefixd_llama_state_bytes(llama, 40));
  constexpr size_t kWindowBytes = 32 * 2 * 32 * 2;  // values of the last layer, which stand last
  EXPECT_EQ(restored.substr(restored.size() - kWindowBytes),
            state.substr(state.size() - kWindowBytes));
  EXPECT_EQ(Store(llama, 40, restored), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(Restored(llama, 40), restored);
  prefixd_llama_close(llama);
}

TEST_F(CapiLlamaTest, WhatDoesNotFitIsRefusedByName) {
  StartDaemon();
  const std::string state = Blob("f16_in_memory.bin"), other = Blob("sliding_in_memory.bin");
  const auto refusal = [&](prefixd_llama* opened) {
    EXPECT_EQ(opened, nullptr);
    return std::string(prefixd_last_error());
  };
  EXPECT_NE(refusal(Open("nobody.gguf", state)), "");
  EXPECT_NE(refusal(Open("full.gguf", "")).find("magic"), std::string::npos);
  EXPECT_NE(refusal(Open("full.gguf", Blob("q8_0_rotated.bin"))).find("a file's"),
            std::string::npos);
  EXPECT_NE(refusal(Open("full.gguf", other)).find("sliding_window"), std::string::npos);

  prefixd_llama* llama = Open("full.gguf", state);
  ASSERT_NE(llama, nullptr) << prefixd_last_error();
  EXPECT_EQ(Store(llama, 5, state), PREFIXD_INVALID_ARGUMENT);
  EXPECT_STREQ(prefixd_last_error(), "llama_store: a state of 4 tokens, 5 are named");
  EXPECT_EQ(Store(llama, 40, other), PREFIXD_FAILED_PRECONDITION);
  EXPECT_STREQ(prefixd_last_error(), "the saved state is of another context of llama.cpp");
  EXPECT_EQ(Store(llama, 4, state.substr(0, 500)), PREFIXD_INVALID_ARGUMENT);
  ASSERT_EQ(Store(llama, 4, state), PREFIXD_OK);
  const std::vector<uint32_t> tokens = Tokens(4);
  prefixd_lease* lease =
      prefixd_acquire(prefixd_llama_space(llama), tokens.data(), 4, nullptr, nullptr);
  std::string memory(state.size() + 1, '\xee');
  EXPECT_EQ(prefixd_llama_fill_state(llama, lease, memory.data(), memory.size()),
            PREFIXD_INVALID_ARGUMENT);
  EXPECT_EQ(memory, std::string(state.size() + 1, '\xee'));
  prefixd_release(lease, nullptr);
  prefixd_llama_close(llama);
}

TEST_F(CapiLlamaTest, WithoutALlamaOrADaemonNothingIsThereAndNothingWaits) {
  char byte = 0;
  const uint32_t token = 1;
  EXPECT_EQ(prefixd_llama_open(nullptr, nullptr), nullptr);
  EXPECT_EQ(prefixd_llama_space(nullptr), nullptr);
  EXPECT_EQ(prefixd_llama_state_bytes(nullptr, 4), 0u);
  EXPECT_NE(prefixd_llama_fill_state(nullptr, nullptr, &byte, 1), PREFIXD_OK);
  EXPECT_NE(prefixd_llama_store(nullptr, &token, 1, &byte, 1, nullptr, nullptr), PREFIXD_OK);
  prefixd_llama_close(nullptr);

  const std::string state = Blob("f16_in_memory.bin");
  prefixd_llama* llama = Open("full.gguf", state);
  ASSERT_NE(llama, nullptr) << "it attaches once there is a daemon: " << prefixd_last_error();
  EXPECT_EQ(Restored(llama, 4), "");
  EXPECT_NE(Store(llama, 4, state), PREFIXD_OK);
  StartDaemon();
  ASSERT_EQ(prefixd_attached(client(), 60'000), 1);
  EXPECT_EQ(Store(llama, 4, state), PREFIXD_OK) << prefixd_last_error();
  EXPECT_EQ(Restored(llama, 4), state);

  daemon_->Signal(SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(daemon_->pid(), &status, WUNTRACED), daemon_->pid()) << "it stands still";
  const auto begin = std::chrono::steady_clock::now();
  prefixd_llama_store_options options = PREFIXD_INIT(prefixd_llama_store_options);
  options.deadline_ms = 100;
  const std::vector<uint32_t> tokens = Tokens(4);
  EXPECT_NE(
      prefixd_llama_store(llama, tokens.data(), 4, state.data(), state.size(), &options, nullptr),
      PREFIXD_OK);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  daemon_->Signal(SIGCONT);
  prefixd_llama_close(llama);
}

}  // namespace
