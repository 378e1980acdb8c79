// The terminal that prefixctl top draws on, through ncurses.
//
// At most one at a time; not for concurrent use.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/top/frame.h"
#include "client/cli/top/keys.h"

namespace prefixd::cli {

class Screen {
 public:
  // FailedPrecondition if standard input or output is no terminal, or ncurses does not know it.
  static absl::StatusOr<std::unique_ptr<Screen>> Open();
  // Gives the terminal back as it was.
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  TopSize size() const;
  void Draw(const std::vector<TopLine>& lines);

  struct Event {
    TopKey key = TopKey::kNone;
    bool resized = false;
  };
  // Returns the next key, or kNone once `most` has passed. A signal to end and a terminal that went
  // away are kQuit.
  Event Wait(std::chrono::milliseconds most);

 private:
  Screen() = default;
};

// Returns whether the locale of the environment has UTF-8.
bool LocaleIsUtf8();

}  // namespace prefixd::cli
