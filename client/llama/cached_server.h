// One llama-server with prefixd behind it: restores what the cache has into its slots, and stores
// what its slots computed.
//
// Thread-safe; a slot belongs to the thread that holds it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "base/threads.h"
#include "client/llama/counts.h"
#include "client/llama/llama_server.h"
#include "client/llama/prompt_request.h"
#include "client/llama/slot_table.h"
#include "client/llama/state_file.h"

namespace prefixd::llama {

struct CachedServerOptions {
  std::string address;  // of the llama-server
  std::string gguf;     // empty: the path that the server names
  std::string salt;
  std::chrono::milliseconds lookup_deadline{200};
  std::chrono::milliseconds load_deadline{2000};
};

class CachedServer {
 public:
  // `index` is the server's in `slots`, where this keeps its slots up to date.
  CachedServer(CachedServerOptions options, size_t index, Client* client, SlotTable* slots,
               StateFolder* folder, Counts* counts);

  const LlamaServer& server() const { return server_; }
  // Learns what the server runs and opens its space, unless that is done. Says why it cannot.
  absl::Status Attach() PREFIXD_EXCLUDES(attach_mutex_);
  // The server did not answer: it may be another one when it comes back.
  void Forget() PREFIXD_EXCLUDES(attach_mutex_);

  struct Restored {
    uint32_t cached = 0;                 // tokens in the slot that need not be computed
    uint32_t from_prefixd = 0;           // of them, those that the slot did not have itself
    std::chrono::milliseconds saved{0};  // time to first token, by the server's own speed
  };
  // Puts into the held slot what the cache has of a prompt beyond what the slot has, where that is
  // faster than computing it. Never fails: without the cache the slot stays as it is. prefixctl why
  // knows the lookup by `request_id`.
  Restored Restore(const std::vector<uint32_t>& prompt, const std::string& request_id,
                   SlotTable::Held* held);
  // Saves what the slot holds after a request of `prompt_tokens`, and stores it in the background.
  void Save(uint32_t prompt_tokens, SlotTable::Held* held);
  // Learns from the server's own timings of a request how fast it computes prompts, and notes
  // tokens that it computed although they were in its slot.
  void Learn(const std::string& request_id, const Restored& restored, const Timings& timings);

  std::string Describe() const PREFIXD_EXCLUDES(attach_mutex_);  // one line for people

 private:
  // What the server runs, and where its caches belong.
  struct Attached {
    SpaceSpec spec;
    interop::LlamaContext context;
    Space space;
    uint64_t bytes_per_token = 0;
    // Whether the cache of a slot can be cut at any token: no sliding or recurrent layers.
    bool cut_anywhere() const { return spec.layers.back().kind != LayerKind::kState; }
  };
  std::shared_ptr<Attached> attached() const PREFIXD_EXCLUDES(attach_mutex_);
  absl::StatusOr<std::shared_ptr<Attached>> Learn();
  absl::StatusOr<interop::LlamaContext> LearnContext(const std::vector<SlotFacts>& slots);
  // Asks the server what the slot holds now; what is not known is taken as nothing.
  void Check(SlotTable::Held* held);
  std::string WhyComputedAgain() const;
  // Returns true if restoring is expected to be faster than computing. Each false raises the
  // expected speed a little, so that a restore is tried again.
  bool Pays(uint32_t tokens, uint64_t bytes);
  void Store(std::shared_ptr<Attached> attached, std::shared_ptr<StateFile> file,
             uint32_t prompt_tokens);

  const CachedServerOptions options_;
  const size_t index_;
  Client* const client_;
  SlotTable* const slots_;
  StateFolder* const folder_;
  Counts* const counts_;
  const LlamaServer server_;
  mutable base::Mutex attach_mutex_;
  std::shared_ptr<Attached> attached_ PREFIXD_GUARDED_BY(attach_mutex_);
  absl::Status why_not_ PREFIXD_GUARDED_BY(attach_mutex_) = absl::UnavailableError("not asked yet");
  std::chrono::steady_clock::time_point try_again_ PREFIXD_GUARDED_BY(attach_mutex_){};
  std::atomic<double> tokens_per_s_ = 0;          // of computing a prompt; 0: not known yet
  std::atomic<double> restored_bytes_per_s_ = 0;  // of a whole restore
  base::Threads storing_;                         // last: its work uses the rest
};

}  // namespace prefixd::llama
