#include "client/worker/report.h"

#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/size.h"

namespace prefixd::worker {
namespace {

using nlohmann::ordered_json;

double Ms(std::chrono::microseconds time) { return static_cast<double>(time.count()) / 1000; }

double EstimateMs(const MatchInfo& match) {
  return static_cast<double>(match.estimated_load_us) / 1000;
}

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

// Formats 3000 as "3,000".
std::string Count(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string Line(const char* label, const std::string& text) {
  return absl::StrCat("  ", label, text, "\n");
}

std::string CacheText(const Answer& answer) {
  const MatchInfo& match = answer.match;
  if (!match.status.ok()) return absl::StrCat("not used: ", match.status.message);
  std::string text = absl::StrCat(ToString(match.kind), ", ", Count(match.restorable_tokens),
                                  " cached, ", Count(answer.used_tokens), " used");
  if (match.restorable_tokens > 0) {
    absl::StrAppend(&text, " (ram ", base::FormatBytes(match.ram_bytes), ", ssd ",
                    base::FormatBytes(match.ssd_bytes),
                    match.remote_bytes == 0
                        ? ""
                        : absl::StrCat(", other hosts ", base::FormatBytes(match.remote_bytes)),
                    ", in place ", base::FormatBytes(answer.in_place_bytes), ")");
  }
  if (!match.why_shorter.empty()) absl::StrAppend(&text, ", shortened by ", match.why_shorter);
  return text;
}

std::string DeviceText(const Answer& answer) {
  std::string text = answer.device.name;
  if (answer.pinned_bytes > 0) {
    absl::StrAppend(&text, ", reads ", base::FormatBytes(answer.pinned_bytes),
                    " of prefixd's memory in place");
  }
  if (!answer.why_not_pinned.empty()) {
    absl::StrAppend(&text, ", not pinned: ", answer.why_not_pinned);
  }
  return text;
}

std::string TimeText(const Answer& answer) {
  std::string text =
      absl::StrCat("first token ", Fixed(Ms(answer.first_token), 1), " ms: load ",
                   Fixed(Ms(answer.load), 1), " (estimated ", Fixed(EstimateMs(answer.match), 1),
                   "), prefill ", Fixed(Ms(answer.prefill), 1));
  if (answer.tokens_per_s > 0) {
    absl::StrAppend(&text, "; then ", Fixed(answer.tokens_per_s, 1), " tokens/s");
  }
  return text;
}

std::string StoreText(const Answer& answer) {
  if (!answer.store_error.empty()) return absl::StrCat("failed: ", answer.store_error);
  if (answer.stored_tokens == 0) return "nothing new";
  std::string text = absl::StrCat(Count(answer.stored_tokens), " tokens in new or grown blocks, ",
                                  Fixed(Ms(answer.store_wait), 1), " ms of waiting for it");
  if (answer.duplicate_tokens > 0) {
    absl::StrAppend(&text, ", ", Count(answer.duplicate_tokens), " another worker stored first");
  }
  if (answer.on_ssd) absl::StrAppend(&text, ", synced on SSD");
  return text;
}

std::string VerifyText(const Answer& answer) {
  if (!answer.verify_error.empty()) return absl::StrCat("failed: ", answer.verify_error);
  if (!answer.verified) return "";
  const Verification& seen = *answer.verified;
  return absl::StrCat(
      seen.wrong_blocks > 0 ? absl::StrCat("WRONG PAGES in ", seen.wrong_blocks, " blocks; ") : "",
      Count(seen.identical_tokens), " of ", Count(seen.tokens),
      " tokens to the byte, the worst block ", Fixed(seen.worst, 4), " off, bound ",
      Fixed(seen.bound, 2));
}

std::string TokenList(const Answer& answer) {
  std::string text;
  for (uint32_t token : answer.tokens) absl::StrAppend(&text, text.empty() ? "" : ",", token);
  return text;
}

}  // namespace

std::string AnswerText(const Answer& answer, const ModelConfig& config) {
  std::string text;
  if (!config.byte_level()) return text;
  for (uint32_t token : answer.tokens) text.push_back(static_cast<char>(token));
  return text;
}

std::string HumanReport(const Answer& answer, const ModelConfig& config) {
  std::string report = absl::StrCat("request", answer.id.empty() ? "" : " ", answer.id, "\n");
  report += Line("prompt  ", absl::StrCat(Count(answer.prompt_tokens), " tokens"));
  if (!answer.device.name.empty()) report += Line("device  ", DeviceText(answer));
  report += Line("cache   ", CacheText(answer));
  report += Line("time    ", TimeText(answer));
  report += Line("stored  ", StoreText(answer));
  const std::string verified = VerifyText(answer);
  if (!verified.empty()) report += Line("verified ", verified);
  if (config.byte_level()) return report + Line("text    ", AnswerText(answer, config));
  return report + Line("tokens  ", TokenList(answer));
}

std::string JsonReport(const Answer& answer, const ModelConfig& config) {
  const MatchInfo& match = answer.match;
  ordered_json report;
  report["id"] = answer.id;
  report["device"] = answer.device.kind;
  report["gpu"] = answer.device.name;
  report["prompt_tokens"] = answer.prompt_tokens;
  report["cached_tokens"] = match.restorable_tokens;
  report["used_tokens"] = answer.used_tokens;
  report["matched_tokens"] = match.matched_tokens;
  report["kind"] = ToString(match.kind);
  report["why_shorter"] = match.why_shorter;
  report["ram_bytes"] = match.ram_bytes;
  report["ssd_bytes"] = match.ssd_bytes;
  report["remote_bytes"] = match.remote_bytes;
  report["arena"] = answer.arena;
  report["why_no_arena"] = answer.why_no_arena;
  report["in_place"] = answer.in_place_bytes;
  report["pinned_bytes"] = answer.pinned_bytes;
  report["why_not_pinned"] = answer.why_not_pinned;
  report["raw_kv_tokens"] = answer.raw_tokens;
  report["quantized_kv_tokens"] = answer.quantized_tokens;
  report["load_ms"] = Ms(answer.load);
  report["load_estimate_ms"] = EstimateMs(match);
  report["prefill_ms"] = Ms(answer.prefill);
  report["prefill_tokens_per_s"] = answer.prefill_tokens_per_s;
  report["first_token_ms"] = Ms(answer.first_token);
  report["tokens_per_s"] = answer.tokens_per_s;
  report["store_wait_ms"] = Ms(answer.store_wait);
  report["stored_tokens"] = answer.stored_tokens;
  report["on_ssd"] = answer.on_ssd;
  report["duplicate_tokens"] = answer.duplicate_tokens;
  report["cache_error"] = match.status.ok() ? answer.store_error : match.status.message;
  report["verified"] = nullptr;
  if (answer.verified) {
    const Verification& seen = *answer.verified;
    report["verified"] = {{"tokens", seen.tokens},
                          {"identical_tokens", seen.identical_tokens},
                          {"wrong_blocks", seen.wrong_blocks},
                          {"worst_difference", seen.worst},
                          {"bound", seen.bound}};
  }
  report["verify_error"] = answer.verify_error;
  report["tokens"] = answer.tokens;
  report["ended"] = answer.ended;
  if (config.byte_level()) report["text"] = AnswerText(answer, config);
  return report.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string JsonError(const std::string& id, const absl::Status& error) {
  ordered_json report;
  report["id"] = id;
  report["error"] = std::string(error.message());
  return report.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace prefixd::worker
