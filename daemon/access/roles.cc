#include "daemon/access/roles.h"

#include <algorithm>

namespace prefixd::daemon {
namespace {

constexpr RoleLine kTable[] = {
    // verb                    reader worker admin
    {"PrefixCache.Attach", true, true, true},
    {"PrefixCache.OpenSpace", true, true, true},
    {"PrefixCache.NotShared", false, true, true},
    {"PrefixCache.Match", true, true, true},
    {"PrefixCache.Acquire", true, true, true},
    {"PrefixCache.Prefetch", true, true, true},
    {"PrefixCache.Release", true, true, true},
    {"PrefixCache.Reserve", false, true, true},
    {"PrefixCache.Commit", false, true, true},
    {"PrefixCache.Abandon", false, true, true},
    {"PrefixCache.Put", false, true, true},
    {"PrefixCache.Fetch", true, true, true},
    {"PrefixCache.Pin", false, true, true},
    {"PrefixCache.Unpin", false, true, true},
    {"PrefixCache.TellDevicePins", true, true, true},
    // These tell of, and clear, a tenant's own spaces only, unless the tenant is "*".
    {"Admin.GetStats", true, true, true, /*wants_all=*/false, /*open=*/true},
    {"Admin.ListSpaces", true, true, true},
    {"Admin.Clear", false, false, true},
    // These concern the daemon as a whole.
    {"Admin.GetConfig", false, false, true, true, /*open=*/true},
    {"Admin.Flush", false, false, true, true},
    {"Admin.Verify", false, false, true, true},
    {"Admin.ListSessions", false, false, true, true},
    {"Admin.ListLeases", false, false, true, true},
    {"Admin.EndSession", false, false, true, true},
    {"Admin.WatchEvents", false, false, true, true},
    {"Admin.ListPins", false, false, true, true},
    {"Admin.SetBudgets", false, false, true, true},
    {"Admin.SetSpaceLimits", false, false, true, true},
    {"Admin.Why", false, false, true, true},
    {"Admin.ListPrefixes", false, false, true, true},
};

const RoleLine* LineOf(std::string_view verb) {
  const RoleLine* const line =
      std::ranges::find_if(kTable, [verb](const RoleLine& entry) { return entry.verb == verb; });
  return line == std::end(kTable) ? nullptr : line;
}

}  // namespace

const char* NameOf(Role role) {
  switch (role) {
    case Role::kReader:
      return "reader";
    case Role::kWorker:
      return "worker";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

std::optional<Role> ReadRole(std::string_view text) {
  for (const Role role : {Role::kReader, Role::kWorker, Role::kAdmin}) {
    if (text == NameOf(role)) return role;
  }
  return std::nullopt;
}

std::span<const RoleLine> RoleTable() { return kTable; }

bool IsOpen(std::string_view verb) {
  const RoleLine* const line = LineOf(verb);
  return line != nullptr && line->open;
}

std::string WhatIsMissing(std::string_view verb, Role role, bool all) {
  const RoleLine* const line = LineOf(verb);
  if (line == nullptr) return "a line in the table of roles";
  const bool may = role == Role::kReader   ? line->reader
                   : role == Role::kWorker ? line->worker
                                           : line->admin;
  if (!may) return line->worker ? "the role worker or admin" : "the role admin";
  if (line->wants_all && !all) return "an admin of all tenants (\"tenant\": \"*\")";
  return "";
}

}  // namespace prefixd::daemon
