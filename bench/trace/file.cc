#include "bench/trace/file.h"

#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

#include "base/status.h"

namespace prefixd::bench {
namespace {

absl::StatusOr<std::string> Decompress(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("trace: ", path, " cannot be read"));
  const std::string packed(std::istreambuf_iterator<char>(file), {});
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                   ZSTD_freeDCtx);
  std::string text, piece(ZSTD_DStreamOutSize(), '\0');
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  size_t wants = 0;
  while (in.pos < in.size) {
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    wants = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(wants)) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace: ", path, " is not zstd: ", ZSTD_getErrorName(wants)));
    }
    text.append(piece, 0, out.pos);
  }
  if (wants != 0) return absl::InvalidArgumentError(absl::StrCat("trace: ", path, " is cut off"));
  return text;
}

class Reader {
 public:
  // False: the line is none of a trace.
  bool Add(std::string_view line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return false;
    const auto at = json.find("timestamp"), ids = json.find("hash_ids");
    if (at == json.end() || !at->is_number() || ids == json.end() || !ids->is_array()) return false;
    Trace::Request request{.at_ms = at->get<double>(), .first = trace_.references.size()};
    int64_t parent = -1;
    for (const nlohmann::json& id : *ids) {
      if (!id.is_number_integer()) return false;
      const auto block = static_cast<TraceBlock>(
          numbers_.try_emplace(id.get<int64_t>(), numbers_.size()).first->second);
      if (block == parents_.size()) parents_.push_back(parent);
      if (parents_[block] != parent) return false;
      parent = block;
      trace_.references.push_back(block);
    }
    request.blocks = trace_.references.size() - request.first;
    if (!trace_.requests.empty()) {
      request.at_ms -= began_ms_;
    } else {
      began_ms_ = std::exchange(request.at_ms, 0);
    }
    trace_.requests.push_back(request);
    return true;
  }
  Trace Take() {
    trace_.unique = parents_.size();
    return std::move(trace_);
  }
  size_t requests() const { return trace_.requests.size(); }

 private:
  Trace trace_;
  double began_ms_ = 0;
  absl::flat_hash_map<int64_t, size_t> numbers_;
  std::vector<int64_t> parents_;  // -1: begins a prompt
};

// The lines that are not empty.
std::vector<std::string> LinesOf(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path, size_t max_requests) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string text, Decompress(path));
  Reader reader;
  for (const std::string& line : LinesOf(text)) {
    if (reader.requests() == max_requests) break;
    if (!reader.Add(line)) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace: ", path, ": line ", reader.requests() + 1,
                       " is no request: wants timestamp and hash_ids, each id below one parent"));
    }
  }
  if (reader.requests() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("trace: ", path, " holds no request"));
  }
  return reader.Take();
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> ReadPrompts(const std::string& path,
                                                               size_t max_requests) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string text, Decompress(path));
  std::vector<std::vector<uint32_t>> prompts;
  for (const std::string& line : LinesOf(text)) {
    if (prompts.size() == max_requests) break;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const bool has_text = json.is_object() && json.contains("input") && json["input"].is_string();
    const std::string input = has_text ? json["input"].get<std::string>() : "";
    if (input.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trace: ", path, " line ", prompts.size() + 1, " has no text of a prompt"));
    }
    std::vector<uint32_t>& prompt = prompts.emplace_back();
    for (const char byte : input) prompt.push_back(static_cast<unsigned char>(byte));
  }
  if (prompts.empty())
    return absl::InvalidArgumentError(absl::StrCat("trace: ", path, " is empty"));
  return prompts;
}

}  // namespace prefixd::bench
