// The lines of a file that may be zstd-compressed, in bounded memory.
//
// One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prefixd::sizing {

class LineReader {
 public:
  // NotFound for a file that cannot be read; InvalidArgument for a compressed one of another kind
  // than zstd.
  static absl::StatusOr<LineReader> Open(const std::string& path, size_t most_line_bytes);
  LineReader(LineReader&&);
  ~LineReader();

  // Reads the next line, without its end. False: there is none, or status() is an error. A line
  // beyond `most_line_bytes` comes cut there; `cut()` says so. `line` is valid until the next call.
  bool Next(std::string_view* line);
  bool cut() const { return cut_; }
  uint64_t number() const { return number_; }  // of the line that Next returned, from 1
  // InvalidArgument where compressed bytes are damaged or end too early, Unavailable where the file
  // cannot be read on.
  const absl::Status& status() const { return status_; }

 private:
  struct Unpacker;
  LineReader(std::string path, std::ifstream file, size_t most_line_bytes);
  bool Fill();    // false: the end, or an error
  bool Unpack();  // the same, of compressed bytes
  void Take(std::string_view bytes);

  std::string path_;
  std::ifstream file_;
  size_t most_line_bytes_;
  std::unique_ptr<Unpacker> unpacker_;  // null for plain text
  std::string text_;                    // read, not yet given out
  size_t at_ = 0;                       // in text_
  std::string line_;
  bool cut_ = false;
  uint64_t number_ = 0;
  absl::Status status_;
};

}  // namespace prefixd::sizing
