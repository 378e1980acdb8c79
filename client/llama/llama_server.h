// One llama-server, by its HTTP API: what prefixd-llama asks it beside its users' requests.
//
// Thread-safe: every call has a connection of its own and ends by its deadline. Unavailable: the
// server does not answer. Other errors carry the server's own message.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "httplib.h"

namespace prefixd::llama {

struct ServerFacts {
  std::string model_path;  // as the server was given it
  std::string model_name;
  uint32_t slots = 0;
  bool has_media = false;  // takes images, audio or video
};

struct SlotFacts {
  int id = 0;
  uint32_t tokens = 0;          // in its cache
  uint64_t context_tokens = 0;  // that it has room for
  bool busy = false;
};

class LlamaServer {
 public:
  explicit LlamaServer(std::string address);  // "http://127.0.0.1:8080"

  const std::string& address() const { return address_; }
  std::unique_ptr<httplib::Client> Connect(std::chrono::milliseconds deadline) const;

  absl::StatusOr<ServerFacts> Facts() const;
  absl::StatusOr<std::vector<SlotFacts>> Slots() const;
  // `content`: a text, or a list of texts and token ids, as the server's completions take it.
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const nlohmann::json& content) const;
  // Returns the prompt that the server makes of the body of a chat request.
  absl::StatusOr<std::string> ApplyTemplate(const std::string& chat_request) const;
  // Puts the tokens into the cache of a slot and generates nothing that anybody sees.
  absl::Status Evaluate(int slot, const std::vector<uint32_t>& tokens) const;
  // `file` is a name in the server's --slot-save-path. Returns the tokens of the state.
  absl::StatusOr<uint32_t> Save(int slot, const std::string& file) const;
  // Returns the milliseconds that the server worked on it, once its other work let it; 0 if it does
  // not say.
  absl::StatusOr<double> Restore(int slot, const std::string& file) const;
  // Returns the LoRA adapters and their scales, as text; empty without any.
  absl::StatusOr<std::string> Adapters() const;

 private:
  absl::StatusOr<nlohmann::json> Get(const std::string& path) const;
  absl::StatusOr<nlohmann::json> Post(const std::string& path, const std::string& body) const;

  const std::string address_;
};

}  // namespace prefixd::llama
