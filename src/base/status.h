// Status macros. Everything inside the project returns absl::Status or absl::StatusOr; no
// exceptions cross a room.
//
// Debian's Abseil is built with its own string_view: build messages with absl::StrCat from
// std::string, const char* and numbers, never from std::string_view.
#pragma once
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#define PREFIXD_CONCAT_INNER(a, b) a##b
#define PREFIXD_CONCAT(a, b) PREFIXD_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expression` (an absl::Status) is not OK.
#define PREFIXD_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status prefixd_status = (expression); !prefixd_status.ok()) { \
      return prefixd_status;                                                \
    }                                                                       \
  } while (false)

// PREFIXD_ASSIGN_OR_RETURN(auto x, F()) where F returns absl::StatusOr<T>.
#define PREFIXD_ASSIGN_OR_RETURN(declaration, expression) \
  PREFIXD_ASSIGN_OR_RETURN_INNER(PREFIXD_CONCAT(result_, __LINE__), declaration, expression)
#define PREFIXD_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                           \
  if (!result.ok()) return result.status();                             \
  declaration = *std::move(result)
