// Which role may call what. One table, one line for each RPC.
//
// Pure functions; thread-safe.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace prefixd::daemon {

enum class Role { kReader, kWorker, kAdmin };

const char* NameOf(Role role);  // "reader", "worker", "admin"
std::optional<Role> ReadRole(std::string_view text);

struct RoleLine {
  const char* verb;  // "Admin.Clear": service and method
  bool reader, worker, admin;
  // What it shows or changes is not of one tenant: wants the tenant "*".
  bool wants_all = false;
  // Without an access file it is served where workers connect, not on the admin socket alone.
  bool open = false;
};

std::span<const RoleLine> RoleTable();

// Returns true if a call of Admin is served where workers connect although there is no access file.
bool IsOpen(std::string_view verb);

// Returns "" if a caller of `role` may call `verb`, else what is needed: "the role admin".
// `all`: the caller's tenant is "*". A verb without a line is refused to everybody.
std::string WhatIsMissing(std::string_view verb, Role role, bool all);

}  // namespace prefixd::daemon
