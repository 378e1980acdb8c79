#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status.h"
#include "interop/safetensors.h"

namespace prefixd::interop {
namespace {

namespace fs = std::filesystem;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

using WeightMap = std::map<std::string, std::string>;  // tensor -> file name, both as written

absl::Status BadCheckpoint(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint: ", path, ": ", what));
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("checkpoint: ", path, ": cannot be read"));
  std::string text;
  char piece[1 << 16];
  while (in.read(piece, sizeof(piece)), in.gcount() > 0) {
    text.append(piece, static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxHeaderBytes) {
      return BadCheckpoint(path, absl::StrCat("is longer than ", kMaxHeaderBytes, " bytes"));
    }
  }
  return text;
}

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  const nlohmann::json index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return BadCheckpoint(path, "has no weight_map");
  }
  WeightMap weights;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      return BadCheckpoint(path, absl::StrCat("tensor ", tensor, " names no file"));
    }
    const std::string name = file.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return BadCheckpoint(path, absl::StrCat("tensor ", tensor, " is in \"", name,
                                              "\", which is not a file of this directory"));
    }
    weights[tensor] = name;
  }
  if (weights.empty()) return BadCheckpoint(path, "weight_map is empty");
  return weights;
}

// Returns the weight map of a sharded checkpoint; empty if there is a model.safetensors.
absl::StatusOr<WeightMap> WeightsOf(const fs::path& directory) {
  if (Exists(directory / kSingleFile)) return WeightMap{};
  if (Exists(directory / kIndexFile)) return ReadIndex(directory / kIndexFile);
  return absl::NotFoundError(absl::StrCat("checkpoint: ", directory.string(), " has neither ",
                                          kSingleFile, " nor ", kIndexFile));
}

std::set<std::string> ShardsOf(const WeightMap& weights) {
  std::set<std::string> shards;
  for (const auto& [tensor, file] : weights) shards.insert(file);
  return shards;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Checkpoint::FilesOf(const std::string& directory) {
  const fs::path root(directory);
  PREFIXD_ASSIGN_OR_RETURN(const WeightMap weights, WeightsOf(root));
  if (weights.empty()) return std::vector<std::string>{root / kSingleFile};
  std::vector<std::string> files = {root / kIndexFile};
  for (const std::string& shard : ShardsOf(weights)) files.push_back(root / shard);
  return files;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  const fs::path root(directory);
  PREFIXD_ASSIGN_OR_RETURN(const WeightMap weights, WeightsOf(root));
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  if (weights.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(root / kSingleFile));
    checkpoint.tensors_ = file->tensors();
    checkpoint.files_.push_back(std::move(file));
    return checkpoint;
  }
  std::map<std::string, const SafetensorsFile*> shards;
  for (const std::string& shard : ShardsOf(weights)) {
    PREFIXD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(root / shard));
    shards[shard] = file.get();
    checkpoint.files_.push_back(std::move(file));
  }
  for (const auto& [name, shard] : weights) {  // in order of name
    const Tensor* tensor = shards[shard]->Find(name);
    if (tensor == nullptr) {
      return BadCheckpoint(root / kIndexFile, absl::StrCat("tensor ", name, " is not in ", shard));
    }
    checkpoint.tensors_.push_back(*tensor);
  }
  return checkpoint;
}

}  // namespace prefixd::interop
