// Writes small checkpoints into a directory that goes with the test.
#pragma once
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace prefixd::interop {

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "prefixd-test.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string PathOf(const std::string& name) const { return (directory_ / name).string(); }
  std::string directory() const { return directory_.string(); }

  void WriteText(const std::string& name, const std::string& text) const {
    std::ofstream(PathOf(name), std::ios::binary | std::ios::trunc) << text;
  }
  // The length field is the header's own unless another is given.
  void WriteSafetensors(const std::string& name, const std::string& header,
                        const std::string& data) const {
    WriteWithLength(name, header.size(), header, data);
  }
  void WriteWithLength(const std::string& name, uint64_t length, const std::string& header,
                       const std::string& data) const {
    std::string text(sizeof(length), '\0');
    std::memcpy(text.data(), &length, sizeof(length));
    WriteText(name, text + header + data);
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace prefixd::interop
