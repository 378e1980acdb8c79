// Reads checkpoints in the safetensors format: a u64 header length, a JSON header, then the
// tensors.
//
// The files are mapped, nothing is copied. Everything is validated at Open: header size, names,
// dtypes, shapes, and that the tensors lie in the data one after the other, without holes or
// overlap, to the file's end. A file that shrinks while it is open raises SIGBUS on access, as
// every mapping does. Immutable after Open, hence thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prefixd::interop {

// Every dtype of the format (safetensors 0.7), so that any checkpoint has a digest. Functions that
// read elements accept some of them and refuse the others by name.
enum class TensorDtype : uint8_t {
  kF32,
  kF16,
  kBf16,
  kU8,
  kU32,
  kI32,
  kI64,
  kBool,
  kI8,
  kU16,
  kI16,
  kU64,
  kF64,
  kC64,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4
};
const char* ToString(TensorDtype dtype);  // as the format spells it: "F32", "BF16"
uint32_t BitsOf(TensorDtype dtype);       // of an element
uint32_t BytesOf(TensorDtype dtype);      // the same, rounded up

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxRank = 16;

struct Tensor {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<uint64_t> shape;  // empty = a scalar
  std::span<const std::byte>
      bytes;  // little-endian, row-major, any alignment; valid as long as its file object
};

// One .safetensors file.
class SafetensorsFile {
 public:
  // Returns the system's error (NotFound, PermissionDenied, ...) if the file cannot be opened or
  // mapped, InvalidArgument naming file and tensor if it is not valid.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // in order of name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const Tensor* Find(const std::string& name) const;  // null when there is none

 private:
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}
  absl::Status Map();
  absl::Status ReadHeader();

  std::string path_;
  std::span<const std::byte> mapping_;  // owned, unmapped by the destructor
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A model directory: model.safetensors, or the shards that model.safetensors.index.json names.
class Checkpoint {
 public:
  // Returns errors as SafetensorsFile::Open does, NotFound if the directory has neither file, and
  // InvalidArgument if the index names a tensor that its shard does not have, or a file outside the
  // directory. Leaves out tensors of a shard that the index does not name.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);

  // Returns every file that decides what the checkpoint is, the index first if there is one. Reads
  // the index, opens no shard.
  static absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& directory);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in order of name
  const Tensor* Find(const std::string& name) const;               // null when there is none
  // Returns InvalidArgument naming the directory and the tensor if there is none.
  absl::StatusOr<Tensor> Get(const std::string& name) const;

 private:
  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Tensor> tensors_;
};

}  // namespace prefixd::interop
