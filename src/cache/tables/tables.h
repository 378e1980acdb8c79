// What the cache knows besides pages: who is there, what they hold, what spaces exist, what was
// learned from workers. Each table has a mutex of its own and calls no other part.
#pragma once
#include "cache/tables/format_advice.h"
#include "cache/tables/history.h"
#include "cache/tables/limits.h"
#include "cache/tables/pins.h"
#include "cache/tables/sessions.h"
#include "cache/tables/spaces.h"
#include "cache/tables/worth.h"

namespace prefixd::cache {

struct Tables {
  explicit Tables(Context* context)
      : sessions(context),
        spaces(context, &worth),
        pins(context),
        advice({.on_misses = context->options.coarser_on_misses,
                .coarser_above = context->options.coarser_above}),
        history(context->shares.history_bytes) {}

  Worth worth;
  Sessions sessions;
  Spaces spaces;
  PinTable pins;
  LimitedSpaces limited;
  FormatAdvice advice;
  History history;
};

}  // namespace prefixd::cache
