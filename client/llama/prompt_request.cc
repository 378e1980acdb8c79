#include "client/llama/prompt_request.h"

#include <array>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::llama {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 2> kChat = {"/v1/chat/completions", "/chat/completions"};
constexpr std::array<std::string_view, 3> kText = {"/v1/completions", "/completions",
                                                   "/completion"};

template <size_t n>
bool Contains(const std::array<std::string_view, n>& paths, std::string_view path) {
  for (const std::string_view each : paths) {
    if (each == path) return true;
  }
  return false;
}

absl::Status PassOn(const char* why) { return absl::UnimplementedError(why); }

bool IsTrue(const json& body, const char* field, bool otherwise) {
  const auto found = body.find(field);
  return found != body.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}
int64_t Number(const json& body, const char* field, int64_t otherwise) {
  const auto found = body.find(field);
  return found != body.end() && found->is_number() ? found->get<int64_t>() : otherwise;
}

// Returns true if a message has parts that are not text.
bool HasMedia(const json& messages) {
  if (!messages.is_array()) return true;
  for (const json& message : messages) {
    if (!message.is_object()) return true;
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    for (const json& part : *content) {
      if (!part.is_object() || part.value("type", json()) != json("text")) return true;
    }
  }
  return false;
}

// A prompt is a text, token ids, or both in a list. A list of several texts is several prompts.
bool IsOnePrompt(const json& prompt) {
  if (prompt.is_string()) return true;
  if (!prompt.is_array() || prompt.empty()) return false;
  size_t texts = 0;
  for (const json& part : prompt) {
    if (!part.is_string() && !part.is_number_unsigned()) return false;
    texts += part.is_string() ? 1 : 0;
  }
  return texts == 0 || texts < prompt.size();
}

}  // namespace

bool HasPrompt(const std::string& path) { return Contains(kChat, path) || Contains(kText, path); }

absl::StatusOr<std::vector<uint32_t>> PromptOf(const std::string& path, const std::string& body,
                                               const LlamaServer& server) {
  const json request = json::parse(body, nullptr, false);
  if (!request.is_object()) return PassOn("not a JSON object");
  if (Number(request, "n", 1) > 1 || Number(request, "n_cmpl", 1) > 1) return PassOn("n above 1");
  if (Number(request, "id_slot", -1) >= 0) return PassOn("it names a slot");
  if (request.contains("lora")) return PassOn("it names adapters");
  if (!IsTrue(request, "cache_prompt", true)) return PassOn("cache_prompt is false");
  json content;
  if (Contains(kChat, path)) {
    if (!request.contains("messages") || HasMedia(request["messages"])) return PassOn("media");
    PREFIXD_ASSIGN_OR_RETURN(content, server.ApplyTemplate(body));
  } else {
    if (!request.contains("prompt") || !IsOnePrompt(request["prompt"])) {
      return PassOn("not one prompt of text or tokens");
    }
    content = request["prompt"];
  }
  PREFIXD_ASSIGN_OR_RETURN(std::vector<uint32_t> tokens, server.Tokenize(content));
  if (tokens.empty()) return PassOn("no tokens");
  return tokens;
}

std::string WithSlot(const std::string& body, int slot) {
  const size_t brace = body.find('{');
  const size_t next = body.find_first_not_of(" \t\r\n", brace + 1);
  const char* const comma = next != std::string::npos && body[next] == '}' ? "" : ",";
  return absl::StrCat(body.substr(0, brace + 1), "\"id_slot\":", slot, comma,
                      body.substr(brace + 1));
}

std::optional<Timings> TimingsIn(const std::string& end_of_answer) {
  constexpr std::string_view kName = "\"timings\":";
  const size_t at = end_of_answer.rfind(kName);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + kName.size(), end = end_of_answer.find('}', begin);
  if (end == std::string::npos) return std::nullopt;
  const json timings = json::parse(end_of_answer.substr(begin, end + 1 - begin), nullptr, false);
  if (!timings.is_object()) return std::nullopt;
  const auto real = [&](const char* field) {
    const auto found = timings.find(field);
    return found != timings.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  return Timings{.cached_tokens = static_cast<uint32_t>(Number(timings, "cache_n", 0)),
                 .computed_tokens = static_cast<uint32_t>(Number(timings, "prompt_n", 0)),
                 .prompt_ms = real("prompt_ms")};
}

}  // namespace prefixd::llama
