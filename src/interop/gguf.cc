#include "interop/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::interop {
namespace {

constexpr char kMagic[] = "GGUF";
constexpr uint64_t kMaxPairs = 65536, kMaxKeptArray = 65536;
enum Type : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

template <typename... Parts>
absl::Status BadGguf(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF: ", parts...));
}

// The bytes of a number, or 0 for what is none.
size_t WidthOf(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

}  // namespace

class GgufReader {
 public:
  explicit GgufReader(std::string_view rest) : rest_(rest) {}

  absl::StatusOr<Gguf> Read() {
    if (!rest_.starts_with(kMagic)) return BadGguf("does not begin with \"", kMagic, "\"");
    rest_.remove_prefix(sizeof(kMagic) - 1);
    PREFIXD_ASSIGN_OR_RETURN(const uint32_t version, Take<uint32_t>("version"));
    if (version < 2 || version > 3) return BadGguf("version ", version, ", accepted: 2 and 3");
    PREFIXD_RETURN_IF_ERROR(Take<uint64_t>("the tensor count").status());
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t pairs, Take<uint64_t>("the count of keys"));
    if (pairs > kMaxPairs) return BadGguf(pairs, " keys, at most ", kMaxPairs);
    Gguf gguf;
    for (uint64_t i = 0; i < pairs; ++i) PREFIXD_RETURN_IF_ERROR(TakePair(&gguf));
    return gguf;
  }

 private:
  template <typename T>
  absl::StatusOr<T> Take(const char* what) {
    if (sizeof(T) > rest_.size()) return BadGguf("ends in ", what);
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  absl::StatusOr<std::string_view> TakeText(const char* what) {
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t length, Take<uint64_t>(what));
    if (length > rest_.size()) return BadGguf("ends in ", what);
    const std::string_view text = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return text;
  }
  // Requires: the bytes of the number are here.
  template <typename T>
  T Next() {
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  Gguf::Value NextNumber(uint32_t type) {
    switch (type) {
      case kF32:
        return double{Next<float>()};
      case kF64:
        return Next<double>();
      case kI8:
        return static_cast<uint64_t>(Next<int8_t>());
      case kI16:
        return static_cast<uint64_t>(Next<int16_t>());
      case kI32:
        return static_cast<uint64_t>(Next<int32_t>());
      case kU16:
        return uint64_t{Next<uint16_t>()};
      case kU32:
        return uint64_t{Next<uint32_t>()};
      case kU64:
      case kI64:
        return Next<uint64_t>();
      default:
        return uint64_t{Next<uint8_t>()};
    }
  }
  absl::Status TakePair(Gguf* gguf) {
    PREFIXD_ASSIGN_OR_RETURN(const std::string_view name, TakeText("a key"));
    const std::string key(name);
    PREFIXD_ASSIGN_OR_RETURN(const uint32_t type, Take<uint32_t>("a type"));
    if (type == kArray) return TakeArray(key, gguf);
    if (type == kString) {
      PREFIXD_ASSIGN_OR_RETURN(const std::string_view text, TakeText("a text"));
      gguf->values_[key] = std::string(text);
      return absl::OkStatus();
    }
    if (WidthOf(type) == 0) return BadGguf("type ", type, " of ", key, " is not known here");
    if (WidthOf(type) > rest_.size()) return BadGguf("ends in ", key);
    gguf->values_[key] = NextNumber(type);
    return absl::OkStatus();
  }
  absl::Status TakeArray(const std::string& key, Gguf* gguf) {
    PREFIXD_ASSIGN_OR_RETURN(const uint32_t type, Take<uint32_t>("a type"));
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t count, Take<uint64_t>("a count"));
    if (type == kString) {
      for (uint64_t i = 0; i < count; ++i) {
        PREFIXD_RETURN_IF_ERROR(TakeText("a text of an array").status());
      }
      return absl::OkStatus();
    }
    const size_t width = WidthOf(type);
    if (width == 0) return BadGguf("an array of type ", type, " in ", key, " is not known here");
    if (count > rest_.size() / width) return BadGguf("ends in ", key);
    if (count > kMaxKeptArray) {  // scores of a vocabulary
      rest_.remove_prefix(count * width);
      return absl::OkStatus();
    }
    std::vector<double> numbers;
    for (uint64_t i = 0; i < count; ++i) {
      numbers.push_back(std::visit(
          [](const auto& value) {
            if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
              return static_cast<double>(value);
            } else {
              return 0.0;
            }
          },
          NextNumber(type)));
    }
    gguf->values_[key] = std::move(numbers);
    return absl::OkStatus();
  }

  std::string_view rest_;
};

absl::StatusOr<Gguf> Gguf::Parse(std::string_view file) { return GgufReader(file).Read(); }

absl::StatusOr<Gguf> Gguf::Read(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat facts;
  if (file < 0 || fstat(file, &facts) != 0) {
    const absl::Status error = absl::ErrnoToStatus(errno, path);
    if (file >= 0) close(file);
    return error;
  }
  const auto bytes = static_cast<size_t>(facts.st_size);
  void* const data =
      bytes == 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (data == MAP_FAILED) return BadGguf(path, " cannot be mapped");
  absl::StatusOr<Gguf> gguf = Parse({static_cast<const char*>(data), bytes});
  munmap(data, bytes);
  if (gguf.ok()) return gguf;
  return absl::Status(gguf.status().code(), absl::StrCat(path, ": ", gguf.status().message()));
}

uint64_t Gguf::Number(const std::string& key, uint64_t otherwise) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const auto* const number = std::get_if<uint64_t>(&found->second);
  return number == nullptr ? otherwise : *number;
}

double Gguf::Real(const std::string& key, double otherwise) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  if (const auto* const real = std::get_if<double>(&found->second)) return *real;
  const auto* const number = std::get_if<uint64_t>(&found->second);
  return number == nullptr ? otherwise : static_cast<double>(*number);
}

std::string Gguf::Text(const std::string& key, const std::string& otherwise) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  const auto* const text = std::get_if<std::string>(&found->second);
  return text == nullptr ? otherwise : *text;
}

std::vector<uint64_t> Gguf::Numbers(const std::string& key, size_t count) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return {};
  if (const auto* const number = std::get_if<uint64_t>(&found->second)) {
    return std::vector<uint64_t>(count, *number);
  }
  const auto* const array = std::get_if<std::vector<double>>(&found->second);
  if (array == nullptr || array->size() != count) return {};
  std::vector<uint64_t> numbers;
  for (const double value : *array) numbers.push_back(value < 0 ? 0 : static_cast<uint64_t>(value));
  return numbers;
}

}  // namespace prefixd::interop
