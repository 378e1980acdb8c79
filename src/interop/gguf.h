// The metadata of a GGUF file: key-value pairs before the tensors (version 2 and 3, little-endian).
// Source of the format: docs/gguf.md of ggml.
//
// Values and pure functions, thread-safe.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::interop {

class Gguf {
 public:
  // Reads the metadata of the file at `path`, not its tensors. Arrays of strings (vocabularies) are
  // passed over. InvalidArgument names what was seen and what was expected; NotFound if the file
  // cannot be read.
  static absl::StatusOr<Gguf> Read(const std::string& path);
  // Parses what stands at the beginning of a file.
  static absl::StatusOr<Gguf> Parse(std::string_view file);

  // Return the value of a key, or `otherwise` if it is not there or of another kind. A number may
  // be stored in any width.
  uint64_t Number(const std::string& key, uint64_t otherwise) const;
  double Real(const std::string& key, double otherwise) const;
  std::string Text(const std::string& key, const std::string& otherwise = "") const;
  // Returns `count` numbers: those of an array of `count`, or one number for all of them. Empty if
  // the key is not there or holds an array of another length.
  std::vector<uint64_t> Numbers(const std::string& key, size_t count) const;
  bool Has(const std::string& key) const { return values_.contains(key); }

 private:
  using Value = std::variant<uint64_t, double, std::string, std::vector<double>>;
  friend class GgufReader;
  std::map<std::string, Value> values_;
};

}  // namespace prefixd::interop
