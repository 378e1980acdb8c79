#include "client/cli/top/keys.h"

#include <algorithm>

namespace prefixd::cli {
namespace {

constexpr ptrdiff_t kPage = 10;  // spaces

// Chooses the space that is `by` rows further down in the table, or as far as it goes.
void Choose(ptrdiff_t by, TopView* view) {
  const std::vector<v1::SpaceStats> spaces = SortedSpaces(*view);
  if (spaces.empty() || !view->drilled.empty()) return;
  const auto chosen = std::find_if(spaces.begin(), spaces.end(), [&](const v1::SpaceStats& space) {
    return space.space_id() == view->chosen;
  });
  const ptrdiff_t from = chosen == spaces.end() ? 0 : chosen - spaces.begin();
  const ptrdiff_t last = static_cast<ptrdiff_t>(spaces.size()) - 1;
  view->chosen = spaces[static_cast<size_t>(std::clamp<ptrdiff_t>(from + by, 0, last))].space_id();
}

void Enter(TopView* view) {
  if (!view->drilled.empty()) return;
  Choose(0, view);
  view->drilled = view->chosen;
}

}  // namespace

bool OnKey(TopKey key, TopView* view) {
  switch (key) {
    case TopKey::kQuit:
      return false;
    case TopKey::kPause:
      view->paused = !view->paused;
      break;
    case TopKey::kSort:
      if (view->drilled.empty()) view->order = NextOrder(view->order);
      break;
    case TopKey::kUp:
      Choose(-1, view);
      break;
    case TopKey::kDown:
      Choose(1, view);
      break;
    case TopKey::kPageUp:
      Choose(-kPage, view);
      break;
    case TopKey::kPageDown:
      Choose(kPage, view);
      break;
    case TopKey::kEnter:
      Enter(view);
      break;
    case TopKey::kBack:
      view->drilled.clear();
      break;
    case TopKey::kNone:
      break;
  }
  return true;
}

}  // namespace prefixd::cli
