// Answers as people and scripts read them.
#pragma once
#include <string>

#include "absl/status/status.h"

#include "client/worker/generate.h"
#include "client/worker/model_config.h"

namespace prefixd::worker {

// The bytes of a byte-level model's answer; "" for other models, whose text needs a tokenizer.
std::string AnswerText(const Answer& answer, const ModelConfig& config);

// A few aligned lines, ending with the text (or the token ids) and a newline.
std::string HumanReport(const Answer& answer, const ModelConfig& config);

// One line without the newline. Times in ms; bytes that are not UTF-8 become U+FFFD in "text",
// "tokens" has them all. Fields stay and keep their meaning once released.
std::string JsonReport(const Answer& answer, const ModelConfig& config);

// {"id": ..., "error": ...}
std::string JsonError(const std::string& id, const absl::Status& error);

}  // namespace prefixd::worker
