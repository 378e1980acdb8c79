// Little-endian, fixed-width reading and writing of byte strings, and hex.
//
// Pure functions and single-threaded cursors. The host must be little-endian.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace prefixd::base {

static_assert(std::endian::native == std::endian::little, "prefixd runs on little-endian hosts");

constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

template <typename T>
std::span<const std::byte> AsBytes(const T* data, size_t count) {
  return {reinterpret_cast<const std::byte*>(data), count * sizeof(T)};
}
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Appends fixed-width values to a string it owns.
class ByteWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void Fixed(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>, "fixed-width scalars only");
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Raw(std::span<const std::byte> data) { bytes_.append(AsText(data)); }
  // Appends a u32 length, then the bytes. Different sequences of calls never give the same string.
  void Framed(std::string_view text) {
    Fixed(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what ByteWriter wrote. A read past the end returns zeros and makes ok() false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> data) : rest_(data) {}
  template <typename T>
  T Fixed() {
    T value{};
    if (std::span<const std::byte> raw = Raw(sizeof(T)); raw.size() == sizeof(T)) {
      std::memcpy(&value, raw.data(), sizeof(T));
    }
    return value;
  }
  // Returns an empty span and makes ok() false when fewer than `count` bytes are left.
  std::span<const std::byte> Raw(size_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    std::span<const std::byte> head = rest_.first(count);
    rest_ = rest_.subspan(count);
    return head;
  }
  std::string Framed() { return std::string(AsText(Raw(Fixed<uint32_t>()))); }
  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

std::string ToHex(std::span<const std::byte> bytes);
// Returns false unless `hex` is exactly 2 * out.size() hexadecimal digits.
bool FromHex(std::string_view hex, std::span<std::byte> out);

}  // namespace prefixd::base
