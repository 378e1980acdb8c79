#include "client/cli/top/top.h"

#include <thread>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "client/cli/top/ask.h"
#include "client/cli/top/screen.h"
#include "client/cli/top/watch.h"

namespace prefixd::cli {
namespace {

constexpr std::chrono::milliseconds kTick{100};  // how soon news are on the screen

TopView FirstView(const Options& options) {
  TopView view;
  view.address = options.server;
  view.interval_s = std::chrono::duration<double>(options.top.interval).count();
  view.utf8 = LocaleIsUtf8();
  view.order = options.top.order;
  return view;
}

absl::StatusOr<std::string> OneFrame(const Options& options, const Watch::Ask& ask) {
  TopView view = FirstView(options);
  view.keys = false;
  for (const bool first : {true, false}) {
    if (!first) std::this_thread::sleep_for(options.top.interval);
    PREFIXD_ASSIGN_OR_RETURN(view.latest, ask());
    view.history.Add(view.latest->at.count(), view.latest->stats);
  }
  std::string text;
  for (const TopLine& line : RenderTop(view, {.columns = options.top.width, .rows = 0})) {
    absl::StrAppend(&text, line.text, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> RunTop(const Options& options, const Surroundings& surroundings) {
  const Watch::Ask ask = AskDaemon(options, surroundings);
  if (options.top.once) return OneFrame(options, ask);
  TopView view = FirstView(options);  // sets the locale, which ncurses asks for
  PREFIXD_ASSIGN_OR_RETURN(const std::unique_ptr<Screen> screen, Screen::Open());
  Watch watch(ask, options.top.interval);
  screen->Draw(RenderTop(view, screen->size()));
  for (;;) {
    const Screen::Event event = screen->Wait(kTick);
    if (!OnKey(event.key, &view)) return "";
    const bool news = !view.paused && watch.Tell(&view);
    if (news || event.resized || event.key != TopKey::kNone) {
      screen->Draw(RenderTop(view, screen->size()));
    }
  }
}

}  // namespace prefixd::cli
