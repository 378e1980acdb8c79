#include "client/cli/top/screen.h"

#define NCURSES_NOMACROS  // they have the names of functions, erase() and move() among them
#include <langinfo.h>
#include <ncurses.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace prefixd::cli {
namespace {

volatile sig_atomic_t told_to_end = 0;

void OnSignal(int) { told_to_end = 1; }

// ncurses would end the process in the middle of a call.
void HearSignals() {
  told_to_end = 0;
  struct sigaction action {};
  action.sa_handler = OnSignal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

TopKey KeyOf(int code) {
  switch (code) {
    case 'q':
    case 'Q':
      return TopKey::kQuit;
    case 'p':
    case 'P':
    case ' ':
      return TopKey::kPause;
    case 's':
    case 'S':
      return TopKey::kSort;
    case KEY_UP:
    case 'k':
      return TopKey::kUp;
    case KEY_DOWN:
    case 'j':
      return TopKey::kDown;
    case KEY_PPAGE:
      return TopKey::kPageUp;
    case KEY_NPAGE:
      return TopKey::kPageDown;
    case KEY_ENTER:
    case '\n':
    case '\r':
      return TopKey::kEnter;
    case 27:  // Esc
    case KEY_BACKSPACE:
    case KEY_LEFT:
      return TopKey::kBack;
    default:
      return TopKey::kNone;
  }
}

attr_t AttributeOf(TopLine::Look look) {
  switch (look) {
    case TopLine::Look::kBold:
      return A_BOLD;
    case TopLine::Look::kReverse:
      return A_REVERSE;
    case TopLine::Look::kPlain:
      break;
  }
  return A_NORMAL;
}

// Takes the terminal's size if it is another one than ncurses has. Its own signal comes late where
// the process was stopped meanwhile.
bool TakeSize() {
  winsize seen{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &seen) != 0 || seen.ws_row == 0 || seen.ws_col == 0) {
    return false;
  }
  if (!::is_term_resized(seen.ws_row, seen.ws_col)) return false;
  ::resizeterm(seen.ws_row, seen.ws_col);
  return true;
}

}  // namespace

bool LocaleIsUtf8() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
}

absl::StatusOr<std::unique_ptr<Screen>> Screen::Open() {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) {
    return absl::FailedPreconditionError(
        "top: standard input and output are no terminal; top --once prints one frame");
  }
  HearSignals();
  if (::newterm(nullptr, stdout, stdin) == nullptr) {
    return absl::FailedPreconditionError(
        "top: $TERM names no terminal that ncurses knows; top --once prints one frame");
  }
  ::cbreak();
  ::noecho();
  ::curs_set(0);
  ::set_escdelay(50);  // milliseconds after which Esc is a key, not the beginning of one
  ::keypad(::stdscr, TRUE);
  ::nodelay(::stdscr, TRUE);
  return std::unique_ptr<Screen>(new Screen);
}

Screen::~Screen() { ::endwin(); }

TopSize Screen::size() const {
  return {.columns = static_cast<size_t>(::getmaxx(::stdscr)),
          .rows = static_cast<size_t>(::getmaxy(::stdscr))};
}

void Screen::Draw(const std::vector<TopLine>& lines) {
  ::erase();
  for (size_t i = 0; i < lines.size(); ++i) {
    ::attrset(static_cast<int>(AttributeOf(lines[i].look)));
    ::mvaddnstr(static_cast<int>(i), 0, lines[i].text.c_str(), -1);
  }
  ::attrset(A_NORMAL);
  ::refresh();
}

Screen::Event Screen::Wait(std::chrono::milliseconds most) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&input, 1, static_cast<int>(most.count()));
  if (told_to_end != 0) return {.key = TopKey::kQuit};
  if (ready > 0 && (input.revents & POLLIN) == 0) return {.key = TopKey::kQuit};
  Event event{.resized = TakeSize()};
  const int code = ::getch();
  if (code == KEY_RESIZE) {
    event.resized = true;
  } else if (code != ERR) {
    event.key = KeyOf(code);
  }
  return event;
}

}  // namespace prefixd::cli
