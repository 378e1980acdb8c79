#include "client/llama/llama_server.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::llama {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCall{5000};  // of calls that compute nothing

absl::Status Refusal(const std::string& where, const httplib::Response& response) {
  const json body = json::parse(response.body, nullptr, false);
  const bool says = body.is_object() && body.contains("error") && body["error"].is_object();
  const std::string message = says ? body["error"].value("message", "") : response.body;
  const std::string text = absl::StrCat(where, ": ", response.status, " ", message);
  if (response.status == 503) return absl::UnavailableError(text);
  if (response.status == 404) return absl::NotFoundError(text);
  if (response.status == 501) return absl::UnimplementedError(text);
  return absl::FailedPreconditionError(text);
}

absl::StatusOr<json> Answer(const std::string& where, const httplib::Result& result) {
  if (!result) {
    return absl::UnavailableError(absl::StrCat(where, ": ", httplib::to_string(result.error())));
  }
  if (result->status != 200) return Refusal(where, *result);
  json body = json::parse(result->body, nullptr, false);
  if (!body.is_discarded()) return body;
  return absl::InternalError(absl::StrCat(where, ": the answer is not JSON"));
}

template <typename T>
T Field(const json& object, const char* name, T otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(name);
  if (found == object.end()) return otherwise;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->get<T>() : otherwise;
  } else if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->get<T>() : otherwise;
  } else {
    return found->is_number() ? found->get<T>() : otherwise;
  }
}

}  // namespace

LlamaServer::LlamaServer(std::string address) : address_(std::move(address)) {}

std::unique_ptr<httplib::Client> LlamaServer::Connect(std::chrono::milliseconds deadline) const {
  auto client = std::make_unique<httplib::Client>(address_);
  client->set_connection_timeout(std::chrono::seconds(2));
  client->set_read_timeout(deadline);
  client->set_write_timeout(deadline);
  client->set_tcp_nodelay(true);
  return client;
}

absl::StatusOr<json> LlamaServer::Get(const std::string& path) const {
  return Answer(address_ + path, Connect(kCall)->Get(path));
}

absl::StatusOr<json> LlamaServer::Post(const std::string& path, const std::string& body) const {
  return Answer(address_ + path, Connect(kCall)->Post(path, body, "application/json"));
}

absl::StatusOr<ServerFacts> LlamaServer::Facts() const {
  PREFIXD_ASSIGN_OR_RETURN(const json props, Get("/props"));
  const json media = props.is_object() ? props.value("modalities", json::object()) : json();
  ServerFacts facts{.model_path = Field<std::string>(props, "model_path", ""),
                    .model_name = Field<std::string>(props, "model_alias", ""),
                    .slots = Field<uint32_t>(props, "total_slots", 0)};
  if (media.is_object()) {
    for (const auto& kind : media.items()) {
      facts.has_media = facts.has_media || (kind.value().is_boolean() && kind.value().get<bool>());
    }
  }
  return facts;
}

absl::StatusOr<std::vector<SlotFacts>> LlamaServer::Slots() const {
  PREFIXD_ASSIGN_OR_RETURN(const json answer, Get("/slots"));
  if (!answer.is_array()) return absl::InternalError(address_ + "/slots: no list of slots");
  std::vector<SlotFacts> slots;
  for (const json& slot : answer) {
    slots.push_back({.id = Field<int>(slot, "id", 0),
                     .tokens = Field<uint32_t>(slot, "n_prompt_tokens", 0),
                     .context_tokens = Field<uint64_t>(slot, "n_ctx", 0),
                     .busy = Field<bool>(slot, "is_processing", false)});
  }
  return slots;
}

absl::StatusOr<std::vector<uint32_t>> LlamaServer::Tokenize(const json& content) const {
  const json body = {{"content", content}, {"add_special", true}, {"parse_special", true}};
  PREFIXD_ASSIGN_OR_RETURN(
      const json answer,
      Post("/tokenize", body.dump(-1, ' ', false, json::error_handler_t::replace)));
  std::vector<uint32_t> tokens;
  if (!answer.is_object() || !answer.contains("tokens") || !answer["tokens"].is_array()) {
    return absl::InternalError(address_ + "/tokenize: no list of tokens");
  }
  for (const json& token : answer["tokens"]) {
    if (!token.is_number_unsigned()) return absl::InternalError("/tokenize: a token is no number");
    tokens.push_back(token.get<uint32_t>());
  }
  return tokens;
}

absl::StatusOr<std::string> LlamaServer::ApplyTemplate(const std::string& chat_request) const {
  PREFIXD_ASSIGN_OR_RETURN(const json answer, Post("/apply-template", chat_request));
  if (answer.is_object() && answer.contains("prompt") && answer["prompt"].is_string()) {
    return answer["prompt"].get<std::string>();
  }
  return absl::InternalError(address_ + "/apply-template: no prompt");
}

absl::Status LlamaServer::Evaluate(int slot, const std::vector<uint32_t>& tokens) const {
  const json body = {
      {"prompt", tokens}, {"n_predict", 1}, {"id_slot", slot}, {"cache_prompt", true}};
  return Post("/completion", body.dump()).status();
}

absl::StatusOr<uint32_t> LlamaServer::Save(int slot, const std::string& file) const {
  PREFIXD_ASSIGN_OR_RETURN(const json answer, Post(absl::StrCat("/slots/", slot, "?action=save"),
                                                   json{{"filename", file}}.dump()));
  return Field<uint32_t>(answer, "n_saved", 0);
}

absl::StatusOr<double> LlamaServer::Restore(int slot, const std::string& file) const {
  PREFIXD_ASSIGN_OR_RETURN(const json answer, Post(absl::StrCat("/slots/", slot, "?action=restore"),
                                                   json{{"filename", file}}.dump()));
  const auto timings = answer.find("timings");
  return timings == answer.end() ? 0 : Field<double>(*timings, "restore_ms", 0);
}

absl::StatusOr<std::string> LlamaServer::Adapters() const {
  PREFIXD_ASSIGN_OR_RETURN(const json answer, Get("/lora-adapters"));
  return answer.empty() ? std::string() : answer.dump();
}

}  // namespace prefixd::llama
