#include "interop/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::interop {
namespace {

using Json = nlohmann::json;

struct DtypeRow {
  TensorDtype dtype;
  const char* name;
  uint32_t bits;
};
// In order of the enumerators.
constexpr auto kDtypes = std::to_array<DtypeRow>({{TensorDtype::kF32, "F32", 32},
                                                  {TensorDtype::kF16, "F16", 16},
                                                  {TensorDtype::kBf16, "BF16", 16},
                                                  {TensorDtype::kU8, "U8", 8},
                                                  {TensorDtype::kU32, "U32", 32},
                                                  {TensorDtype::kI32, "I32", 32},
                                                  {TensorDtype::kI64, "I64", 64},
                                                  {TensorDtype::kBool, "BOOL", 8},
                                                  {TensorDtype::kI8, "I8", 8},
                                                  {TensorDtype::kU16, "U16", 16},
                                                  {TensorDtype::kI16, "I16", 16},
                                                  {TensorDtype::kU64, "U64", 64},
                                                  {TensorDtype::kF64, "F64", 64},
                                                  {TensorDtype::kC64, "C64", 64},
                                                  {TensorDtype::kF8E4M3, "F8_E4M3", 8},
                                                  {TensorDtype::kF8E5M2, "F8_E5M2", 8},
                                                  {TensorDtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
                                                  {TensorDtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
                                                  {TensorDtype::kF8E8M0, "F8_E8M0", 8},
                                                  {TensorDtype::kF6E2M3, "F6_E2M3", 6},
                                                  {TensorDtype::kF6E3M2, "F6_E3M2", 6},
                                                  {TensorDtype::kF4, "F4", 4}});

absl::Status BadFile(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors: ", path, ": ", what));
}

absl::Status BadTensor(const std::string& path, const std::string& name, const std::string& what) {
  return BadFile(path, absl::StrCat("tensor ", name, ": ", what));
}

std::optional<TensorDtype> ParseDtype(const std::string& name) {
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::string KnownDtypes() {
  std::string names;
  for (const DtypeRow& row : kDtypes) absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
  return names;
}

// Returns false if the product does not fit into 64 bits.
bool Multiply(uint64_t factor, uint64_t* product) {
  return !__builtin_mul_overflow(*product, factor, product);
}

absl::Status ReadShape(const std::string& path, const Json& shape, Tensor* tensor) {
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return BadTensor(path, tensor->name,
                     absl::StrCat("shape is not a list of at most ", kMaxRank, " sizes"));
  }
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) {
      return BadTensor(path, tensor->name, "shape holds something that is not a size");
    }
    tensor->shape.push_back(size.get<uint64_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadSpan(const std::string& path, const Json& offsets, std::span<const std::byte> data,
                      Tensor* tensor) {
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return BadTensor(path, tensor->name, "data_offsets is not a pair of offsets");
  }
  const uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return BadTensor(path, tensor->name,
                     absl::StrCat("data_offsets are ", begin, " to ", end, ", the file holds ",
                                  data.size(), " bytes of data"));
  }
  uint64_t bits = BitsOf(tensor->dtype);
  bool fits = true;
  for (uint64_t size : tensor->shape) fits = fits && Multiply(size, &bits);
  if (!fits || bits % 8 != 0 || bits / 8 != end - begin) {
    return BadTensor(
        path, tensor->name,
        absl::StrCat("has ", end - begin, " bytes, its shape wants ",
                     fits ? absl::StrCat(static_cast<double>(bits) / 8) : "more than 2^61"));
  }
  tensor->bytes = data.subspan(begin, end - begin);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ReadTensor(const std::string& path, const std::string& name,
                                  const Json& entry, std::span<const std::byte> data) {
  Tensor tensor;
  tensor.name = name;
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.is_object() || !entry.contains(field)) {
      return BadTensor(path, name, absl::StrCat("has no ", field));
    }
  }
  const Json& dtype = entry["dtype"];
  const std::optional<TensorDtype> known =
      dtype.is_string() ? ParseDtype(dtype.get<std::string>()) : std::nullopt;
  if (!known) {
    return BadTensor(path, name,
                     absl::StrCat("dtype ", dtype.is_string() ? dtype.get<std::string>() : "",
                                  " is not one of ", KnownDtypes()));
  }
  tensor.dtype = *known;
  PREFIXD_RETURN_IF_ERROR(ReadShape(path, entry["shape"], &tensor));
  PREFIXD_RETURN_IF_ERROR(ReadSpan(path, entry["data_offsets"], data, &tensor));
  return tensor;
}

// Checks that the tensors cover the data one after the other. This refuses a name given twice too,
// since the first entry, which JSON parsing drops, leaves a hole.
absl::Status CheckCover(const std::string& path, std::vector<Tensor> tensors,
                        std::span<const std::byte> data) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  const std::byte* next = data.data();
  for (const Tensor& tensor : tensors) {
    if (tensor.bytes.data() != next) {
      return BadTensor(path, tensor.name,
                       absl::StrCat("begins at ", tensor.bytes.data() - data.data(), ", the ",
                                    tensor.bytes.data() < next ? "tensor before it ends at "
                                                               : "data before it ends at ",
                                    next - data.data()));
    }
    next += tensor.bytes.size();
  }
  if (next == data.data() + data.size()) return absl::OkStatus();
  return BadFile(path, absl::StrCat("holds ", data.size(), " bytes of data, the tensors use ",
                                    next - data.data()));
}

const Tensor* FindIn(const std::vector<Tensor>& tensors, const std::string& name) {
  const auto place =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const Tensor& tensor, const std::string& n) { return tensor.name < n; });
  return place != tensors.end() && place->name == name ? &*place : nullptr;
}

}  // namespace

const char* ToString(TensorDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
uint32_t BitsOf(TensorDtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bits; }
uint32_t BytesOf(TensorDtype dtype) { return (BitsOf(dtype) + 7) / 8; }

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path));
  PREFIXD_RETURN_IF_ERROR(file->Map());
  PREFIXD_RETURN_IF_ERROR(file->ReadHeader());
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_.data() != nullptr) {
    munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
  }
}

absl::Status SafetensorsFile::Map() {
  const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("safetensors: ", path_));
  struct stat facts;
  void* mapped = MAP_FAILED;
  absl::Status status;
  if (fstat(file, &facts) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("safetensors: ", path_));
  } else if (!S_ISREG(facts.st_mode) || facts.st_size < 8) {
    status = BadFile(path_, absl::StrCat("is not a file of at least 8 bytes, has ", facts.st_size));
  } else {
    mapped = mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("safetensors: ", path_, ": mmap"));
    }
  }
  close(file);  // the mapping keeps the file alive
  if (mapped != MAP_FAILED) {
    mapping_ = {static_cast<const std::byte*>(mapped), static_cast<size_t>(facts.st_size)};
  }
  return status;
}

absl::Status SafetensorsFile::ReadHeader() {
  uint64_t header_bytes;
  std::memcpy(&header_bytes, mapping_.data(), sizeof(header_bytes));
  if (header_bytes >= kMaxHeaderBytes || header_bytes > mapping_.size() - sizeof(header_bytes)) {
    return BadFile(path_, absl::StrCat("header of ", header_bytes, " bytes, the file has ",
                                       mapping_.size(), ", limit ", kMaxHeaderBytes));
  }
  const std::span<const std::byte> text = mapping_.subspan(sizeof(header_bytes), header_bytes);
  const std::span<const std::byte> data = mapping_.subspan(sizeof(header_bytes) + header_bytes);
  const Json header = Json::parse(base::AsText(text), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return BadFile(path_, "header is not a JSON object");
  for (const auto& [name, entry] : header.items()) {  // in order of name
    if (name != "__metadata__") {
      PREFIXD_ASSIGN_OR_RETURN(Tensor tensor, ReadTensor(path_, name, entry, data));
      tensors_.push_back(std::move(tensor));
      continue;
    }
    if (entry.is_null()) continue;  // MLX writes null if it is given no metadata
    if (!entry.is_object()) return BadFile(path_, "__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        return BadFile(path_, "__metadata__ holds something that is not text");
      }
      metadata_[key] = value.get<std::string>();
    }
  }
  return CheckCover(path_, tensors_, data);
}

const Tensor* SafetensorsFile::Find(const std::string& name) const {
  return FindIn(tensors_, name);
}

const Tensor* Checkpoint::Find(const std::string& name) const { return FindIn(tensors_, name); }

absl::StatusOr<Tensor> Checkpoint::Get(const std::string& name) const {
  if (const Tensor* tensor = Find(name)) return *tensor;
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint: ", directory_, " has no tensor ", name));
}

}  // namespace prefixd::interop
