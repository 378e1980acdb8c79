#include "sizing/request_line.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "nlohmann/json.hpp"

namespace prefixd::sizing {
namespace {

using nlohmann::json;

enum class Field : uint8_t { kOther, kHashes, kTokens, kPrompt, kMessages, kTime, kLength };

Field FieldOf(std::string_view key) {
  if (key == "hash_ids") return Field::kHashes;
  for (const char* const name : {"prompt_token_ids", "input_ids", "token_ids", "tokens"}) {
    if (key == name) return Field::kTokens;
  }
  for (const char* const name : {"prompt", "input", "text"}) {
    if (key == name) return Field::kPrompt;
  }
  if (key == "messages") return Field::kMessages;
  if (key == "timestamp") return Field::kTime;
  return key == "input_length" ? Field::kLength : Field::kOther;
}

// Takes what a request says out of the events of the parser: no tree of values is built, whatever
// else the line holds.
class Taker : public json::json_sax_t {
 public:
  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t value) override { return Number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{INT64_MAX}) return Wrong("a number is too large");
    return Number(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (field_ == Field::kTime && arrays_ == 0) SetTime(value);
    if (arrays_ > 0 && InIds()) return Wrong("an id is no whole number");
    return Value();
  }
  bool string(string_t& value) override {
    if (field_ == Field::kPrompt && arrays_ == 0) SetText(value);
    if (field_ == Field::kPrompt && arrays_ > 0) return Wrong("one line has several prompts");
    if (field_ == Field::kMessages && inner_text_) AppendText(value);
    if (arrays_ > 0 && InIds()) return Wrong("an id is no whole number");
    return Value();
  }
  bool binary(binary_t&) override { return Value(); }
  bool start_object(size_t) override {
    if (arrays_ > 0 && InIds()) return Wrong("an id is no whole number");
    ++objects_;
    if (objects_ == 2 && arrays_ == 0 && in_body_next_) in_body_ = true;
    return true;
  }
  bool key(string_t& key) override {
    const bool own = arrays_ == 0 && (objects_ == 1 || (objects_ == 2 && in_body_));
    if (own) {
      field_ = FieldOf(key);
      in_body_next_ = objects_ == 1 && key == "body";
    } else if (field_ == Field::kMessages) {
      inner_text_ = key == "role" || key == "content" || key == "text";
    }
    return true;
  }
  bool end_object() override {
    if (objects_ == 2 && arrays_ == 0) in_body_ = false;
    --objects_;
    if (objects_ == 1 && arrays_ == 0) field_ = Field::kOther;
    return true;
  }
  bool start_array(size_t) override {
    if (arrays_ > 0 && InIds()) {
      return Wrong(field_ == Field::kPrompt ? "one line has several prompts"
                                            : "an id is no whole number");
    }
    ++arrays_;
    if (arrays_ == 1 && InIds()) StartIds();
    return true;
  }
  bool end_array() override {
    --arrays_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override {
    if (line_.why == nullptr) line_.why = "it is no whole JSON object";
    return false;
  }
  RequestLine Take() {
    line_.kind = has_hashes_   ? LineKind::kHashes
                 : has_tokens_ ? LineKind::kTokens
                 : has_text_   ? LineKind::kText
                               : LineKind::kBad;
    if (line_.kind == LineKind::kBad) line_.why = "it has neither ids nor text of a prompt";
    return std::move(line_);
  }
  const char* why() const { return line_.why; }

 private:
  bool InIds() const {
    return field_ == Field::kHashes || field_ == Field::kTokens || field_ == Field::kPrompt;
  }
  // Hashes say most, then token ids.
  void StartIds() {
    takes_ = field_ == Field::kHashes || (!has_hashes_ && !has_tokens_);
    if (!takes_) return;
    (field_ == Field::kHashes ? has_hashes_ : has_tokens_) = true;
    line_.ids.clear();
  }
  bool Number(int64_t value) {
    if (arrays_ == 0 && field_ == Field::kTime) SetTime(static_cast<double>(value));
    if (arrays_ == 0 && field_ == Field::kLength && value > 0) {
      line_.tokens = static_cast<uint64_t>(value);
    }
    if (arrays_ == 1 && InIds() && takes_) {
      if (field_ != Field::kHashes && (value < 0 || value > int64_t{UINT32_MAX})) {
        return Wrong("a token id is out of range");
      }
      line_.ids.push_back(value);
    }
    return true;
  }
  void SetTime(double ms) {
    if (!std::isfinite(ms)) return;
    line_.at_ms = ms;
    line_.has_time = true;
  }
  void SetText(const std::string& text) {
    has_text_ = true;
    line_.text = text;
  }
  void AppendText(const std::string& text) {
    has_text_ = true;
    line_.text.append(text).push_back('\n');
  }
  bool Value() const { return true; }
  bool Wrong(const char* why) {
    line_.why = why;
    return false;
  }

  RequestLine line_;
  Field field_ = Field::kOther;  // that the next value belongs to
  int objects_ = 0, arrays_ = 0;
  bool in_body_ = false, in_body_next_ = false;
  bool inner_text_ = false;
  bool takes_ = false;
  bool has_hashes_ = false, has_tokens_ = false, has_text_ = false;
};

RequestLine Bad(const char* why) {
  RequestLine line;
  line.kind = LineKind::kBad;
  line.why = why;
  return line;
}

RequestLine ReadJson(std::string_view text) {
  Taker taker;
  if (!json::sax_parse(text.begin(), text.end(), &taker)) return Bad(taker.why());
  return taker.Take();
}

// The prompt's text stands before the ids and may say anything: the last such words count.
RequestLine ReadLogLine(std::string_view text) {
  constexpr std::string_view kIds = "prompt_token_ids: [";
  const auto has = [text](std::string_view words) {
    return text.find(words) != std::string_view::npos;
  };
  RequestLine line;
  line.from_log = true;
  const size_t at = text.rfind(kIds);
  if (at == std::string_view::npos) {
    if (has("Received request ")) return Bad("the log does not say its prompt_token_ids");
    const bool own = (has(" acquire HIT ") || has(" acquire MISS ")) && has(" prompt=");
    return own ? Bad("it is of prefixd's own log, which never holds tokens") : line;
  }
  line.kind = LineKind::kTokens;
  const char* next = text.data() + at + kIds.size();
  const char* const end = text.data() + text.size();
  while (next < end && *next != ']') {
    uint32_t id = 0;
    const auto [after, error] = std::from_chars(next, end, id);
    if (error != std::errc()) return Bad("prompt_token_ids are cut off");
    line.ids.push_back(id);
    next = after;
    while (next < end && (*next == ',' || *next == ' ')) ++next;
  }
  return next == end ? Bad("prompt_token_ids are cut off") : line;
}

}  // namespace

RequestLine ReadRequestLine(std::string_view line) {
  const size_t begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) {
    RequestLine blank;
    blank.blank = true;
    return blank;
  }
  return line[begin] == '{' ? ReadJson(line.substr(begin)) : ReadLogLine(line.substr(begin));
}

}  // namespace prefixd::sizing
