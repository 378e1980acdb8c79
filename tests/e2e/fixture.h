// The real programs, started as a person would: prefixd in a temporary directory, workers and
// prefixctl against it.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "nlohmann/json.hpp"

#include "tests/support/process.h"

namespace prefixd::testing {

class EndToEndTest : public ::testing::Test {
 protected:
  EndToEndTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prefixd_e2e_XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    arena_ = "/dev/shm/" + std::filesystem::path(dir_).filename().string();
  }
  ~EndToEndTest() override {
    daemon_.reset();
    std::filesystem::remove_all(dir_);
    std::filesystem::remove(arena_);
    std::filesystem::remove(arena_ + ".key");
    std::filesystem::remove_all(arena_ + ".locks");
  }
  static std::string Program(const std::string& name) {
    return std::string(PREFIXD_BINARY_DIR) + "/" + name;
  }
  std::string socket() const { return dir_ + "/prefixd.sock"; }
  std::string address() const { return "unix://" + socket(); }

  std::vector<std::string> DaemonCommand(std::vector<std::string> more = {}) const {
    std::vector<std::string> argv = {Program("prefixd"),
                                     "--socket",
                                     socket(),
                                     "--directory",
                                     dir_ + "/data",
                                     "--ram",
                                     ram_,
                                     "--ssd",
                                     "1GiB",
                                     "--ssd-floor",
                                     "0",
                                     "--arena",
                                     arena_};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  void StartDaemon(const std::vector<std::string>& more = {}) {
    daemon_ = std::make_unique<Process>(DaemonCommand(more));
    ASSERT_TRUE(daemon_->WaitForError("listening on")) << daemon_->err();
  }
  // SIGTERM, drain, end.
  void StopDaemon() {
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->Wait(), 0) << daemon_->err();
    EXPECT_NE(daemon_->err().find("nothing unsaved"), std::string::npos) << daemon_->err();
    daemon_.reset();
  }

  // As after a reboot: what the arena held is on the SSD alone.
  void LoseArena() const { std::filesystem::remove(arena_); }

  static std::string Corpus(size_t from, size_t bytes) {
    std::ifstream file(std::string(PREFIXD_TEST_DATA) + "/corpus/kjv_sample.txt", std::ios::binary);
    file.seekg(static_cast<std::streamoff>(from));
    std::string text(bytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(bytes));
    EXPECT_EQ(static_cast<size_t>(file.gcount()), bytes);
    return text;
  }
  std::string WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << text;
    return dir_ + "/" + name;
  }
  std::vector<std::string> WorkerCommand(const std::string& prompt, const std::string& server,
                                         const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv = {Program("prefixd-worker"),
                                     "--server",
                                     server,
                                     "--model",
                                     std::string(PREFIXD_TEST_DATA) + "/" + model_,
                                     "--prompt-file",
                                     WriteFile("prompt" + std::to_string(prompts_++), prompt),
                                     "--max-tokens",
                                     std::to_string(max_tokens_),
                                     "--threads",
                                     "2",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // One worker process, one request; its JSON report.
  nlohmann::json Worker(const std::string& prompt, const std::string& server,
                        const std::vector<std::string>& more = {}) {
    Process worker(WorkerCommand(prompt, server, more));
    EXPECT_EQ(worker.Wait(), 0) << worker.err();
    auto report = nlohmann::json::parse(worker.out(), nullptr, false);
    EXPECT_FALSE(report.is_discarded()) << worker.out() << worker.err();
    return report.is_discarded() ? nlohmann::json::object() : report;
  }
  nlohmann::json Ctl(std::vector<std::string> arguments, int exit_code = 0) {
    std::vector<std::string> argv = {Program("prefixctl"), "--server", address(), "--json"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    Process ctl(argv);
    EXPECT_EQ(ctl.Wait(), exit_code) << ctl.out() << ctl.err();
    auto reply = nlohmann::json::parse(ctl.out(), nullptr, false);
    return reply.is_discarded() ? nlohmann::json::object() : reply;
  }

  std::string dir_;
  std::string model_ = "model";  // of tests/data
  int max_tokens_ = 24;
  std::string ram_ = "256MiB";
  std::string arena_;  // the shared one, on a tmpfs
  std::unique_ptr<Process> daemon_;
  int prompts_ = 0;
};

}  // namespace prefixd::testing
