#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace prefixd::testing {

// A GGUF file by hand, without tensors. For tests.
class GgufFile {
 public:
  GgufFile() {
    bytes_ = "GGUF";
    Put<uint32_t>(3);
    Put<uint64_t>(0);
    Put<uint64_t>(0);
  }
  GgufFile& Number(const std::string& key, uint32_t value) {
    Key(key, 4);
    Put(value);
    return *this;
  }
  GgufFile& Real(const std::string& key, float value) {
    Key(key, 6);
    Put(value);
    return *this;
  }
  GgufFile& Text(const std::string& key, const std::string& value) {
    Key(key, 8);
    PutText(value);
    return *this;
  }
  GgufFile& Texts(const std::string& key, uint64_t count) {
    Key(key, 9);
    Put<uint32_t>(8);
    Put(count);
    for (uint64_t i = 0; i < count; ++i) PutText("token");
    return *this;
  }
  GgufFile& Numbers(const std::string& key, const std::vector<int32_t>& values) {
    Key(key, 9);
    Put<uint32_t>(5);
    Put<uint64_t>(values.size());
    for (const int32_t value : values) Put(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutText(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_ += text;
  }
  void Key(const std::string& key, uint32_t type) {
    PutText(key);
    Put(type);
    const uint64_t count = ++keys_;
    std::memcpy(bytes_.data() + 16, &count, sizeof(count));
  }
  std::string bytes_;
  uint64_t keys_ = 0;
};

}  // namespace prefixd::testing
