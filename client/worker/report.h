// Answers as people and scripts read them.
#pragma once
#include <string>

#include "absl/status/status.h"

#include "client/worker/generate.h"
#include "client/worker/model_config.h"

namespace prefixd::worker {

// Returns the bytes of a byte-level model's answer; "" for other models, whose text needs a
// tokenizer.
std::string AnswerText(const Answer& answer, const ModelConfig& config);

// Returns a few aligned lines that end with the text (or the token ids) and a newline.
std::string HumanReport(const Answer& answer, const ModelConfig& config);

// Returns one line without the newline. Times are in ms. "gpu" is "" on the CPU. In "text", bytes
// that are not UTF-8 become U+FFFD; "tokens" has them all. Once released, fields stay and keep
// their meaning.
std::string JsonReport(const Answer& answer, const ModelConfig& config);

// Returns {"id": ..., "error": ...}.
std::string JsonError(const std::string& id, const absl::Status& error);

}  // namespace prefixd::worker
