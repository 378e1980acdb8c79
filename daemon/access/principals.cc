#include "daemon/access/principals.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/status.h"
#include "block/space_identity.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;

// One entry of a list, and what is wrong with it.
class Entry {
 public:
  Entry(const json& entry, std::string where, std::set<std::string> fields)
      : entry_(entry), where_(std::move(where)) {
    if (!entry.is_object()) Fail("is not an object");
    for (const auto& [field, value] : entry.items()) {
      if (entry.is_object() && !fields.contains(field))
        Fail(absl::StrCat("has an unknown field \"", field, "\""));
    }
  }

  std::string Text(const char* field, bool needed = true) {
    if (!Has(field)) {
      if (needed) Fail(absl::StrCat("has no \"", field, "\""));
      return "";
    }
    if (entry_[field].is_string()) return entry_[field].get<std::string>();
    Fail(absl::StrCat("\"", field, "\" is not a text"));
    return "";
  }
  uint64_t Number(const char* field) {
    if (!Has(field)) return 0;
    if (entry_[field].is_number_unsigned() && entry_[field] > 0u) {
      return entry_[field].get<uint64_t>();
    }
    Fail(absl::StrCat("\"", field, "\" is not a whole number above 0"));
    return 0;
  }
  std::set<uint32_t> Ids(const char* field) {
    std::set<uint32_t> ids;
    if (!Has(field)) return ids;
    const json& list = entry_[field];
    const bool good = list.is_array() && std::ranges::all_of(list, [](const json& id) {
                        return id.is_number_unsigned() && id.get<uint64_t>() < ~uint32_t{0};
                      });
    if (!good) {
      Fail(absl::StrCat("\"", field, "\" is not a list of numbers"));
      return ids;
    }
    for (const json& id : list) ids.insert(id.get<uint32_t>());
    return ids;
  }
  void Fail(const std::string& why) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where_, " ", why));
  }
  const absl::Status& status() const { return status_; }

 private:
  bool Has(const char* field) const { return entry_.is_object() && entry_.contains(field); }

  const json& entry_;
  const std::string where_;
  absl::Status status_;
};

const std::set<std::string> kCommon = {"name",        "tenant",         "role",
                                       "expires",     "sessions",       "requests_per_s",
                                       "lease_bytes", "bytes_in_flight"};

std::set<std::string> Fields(std::initializer_list<std::string> more) {
  std::set<std::string> fields = kCommon;
  fields.insert(more);
  return fields;
}

PrincipalPtr ReadPrincipal(Entry* entry) {
  auto who = std::make_shared<Principal>();
  who->name = entry->Text("name");
  who->tenant = entry->Text("tenant");
  who->sessions = entry->Number("sessions");
  who->requests_per_s = entry->Number("requests_per_s");
  who->lease_bytes = entry->Number("lease_bytes");
  who->bytes_in_flight = entry->Number("bytes_in_flight");
  if (who->bytes_in_flight != 0 && who->bytes_in_flight < kPutBytesInFlight) {
    entry->Fail(absl::StrCat("\"bytes_in_flight\" is ", who->bytes_in_flight, ", one Put takes ",
                             kPutBytesInFlight));
  }
  const std::optional<Role> role = ReadRole(entry->Text("role"));
  if (!role) entry->Fail("\"role\" is none of reader, worker and admin");
  who->role = role.value_or(Role::kReader);
  if (who->name.empty()) entry->Fail("\"name\" is empty");
  if (who->tenant.empty() || who->tenant.size() > block::kMaxTenantBytes) {
    entry->Fail("\"tenant\" is empty or too long");
  }
  if (who->all() && who->role != Role::kAdmin) {
    entry->Fail("\"tenant\": \"*\" is for the role admin only");
  }
  const std::string expires = entry->Text("expires", false);
  std::string error;
  if (!expires.empty() && !absl::ParseTime(absl::RFC3339_full, expires, &who->expires, &error)) {
    entry->Fail("\"expires\" is not a time like 2027-01-01T00:00:00Z");
  }
  return who;
}

// Calls `read(entry)` for each entry of the list `name`; an absent list has none.
template <typename Read>
absl::Status ReadList(const json& file, const char* name, const std::set<std::string>& fields,
                      const Read& read) {
  if (!file.contains(name)) return absl::OkStatus();
  if (!file[name].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a list"));
  }
  for (size_t i = 0; i < file[name].size(); ++i) {
    Entry entry(file[name][i], absl::StrCat(name, "[", i, "]"), fields);
    if (entry.status().ok()) read(&entry);
    PREFIXD_RETURN_IF_ERROR(entry.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<json> ParseFile(const std::string& text) {
  json file;
  try {
    file = json::parse(text);
  } catch (const json::parse_error& error) {
    const auto end = text.begin() + static_cast<long>(std::min(error.byte, text.size()));
    return absl::InvalidArgumentError(
        absl::StrCat("line ", 1 + std::count(text.begin(), end, '\n'), ": ", error.what()));
  } catch (const json::exception& error) {  // a number that no double can hold
    return absl::InvalidArgumentError(error.what());
  }
  if (!file.is_object()) return absl::InvalidArgumentError("line 1: the file is not one object");
  for (const auto& [name, list] : file.items()) {
    if (name != "tokens" && name != "certificates" && name != "unix") {
      return absl::InvalidArgumentError(absl::StrCat("unknown list \"", name, "\""));
    }
  }
  return file;
}

}  // namespace

absl::StatusOr<Principals> Principals::Parse(const std::string& text) {
  PREFIXD_ASSIGN_OR_RETURN(const json file, ParseFile(text));
  Principals read;
  const auto note = [&read](const PrincipalPtr& who) {
    if (!who->all()) read.tenants_.insert(who->tenant);
    read.all_.push_back(who);
    return who;
  };
  PREFIXD_RETURN_IF_ERROR(ReadList(file, "tokens", Fields({"sha256"}), [&](Entry* entry) {
    Token token;
    if (!base::FromHex(entry->Text("sha256"), token.sha256)) {
      entry->Fail("\"sha256\" is not 64 hexadecimal digits");
    }
    token.who = note(ReadPrincipal(entry));
    read.tokens_.push_back(std::move(token));
  }));
  PREFIXD_RETURN_IF_ERROR(ReadList(file, "certificates", Fields({}), [&](Entry* entry) {
    read.certificates_.push_back(note(ReadPrincipal(entry)));
  }));
  PREFIXD_RETURN_IF_ERROR(ReadList(file, "unix", Fields({"uids", "gids"}), [&](Entry* entry) {
    User user{.users = entry->Ids("uids"), .groups = entry->Ids("gids"), .who = nullptr};
    if (user.users.empty() && user.groups.empty()) entry->Fail("has neither uids nor gids");
    user.who = note(ReadPrincipal(entry));
    read.users_.push_back(std::move(user));
  }));
  return read;
}

PrincipalPtr Principals::OfToken(const base::Digest256& sha256) const {
  PrincipalPtr found;
  for (const Token& token : tokens_) {  // all of them: how long it takes says nothing
    if (base::SameSecret(token.sha256, sha256) && found == nullptr) found = token.who;
  }
  return found;
}

PrincipalPtr Principals::OfCertificate(const std::string& name) const {
  const auto found = std::ranges::find_if(
      certificates_, [&name](const PrincipalPtr& who) { return who->name == name; });
  return found == certificates_.end() ? nullptr : *found;
}

PrincipalPtr Principals::OfUser(uid_t user, const std::vector<gid_t>& groups) const {
  const auto found = std::ranges::find_if(users_, [&](const User& entry) {
    return entry.users.contains(user) || std::ranges::any_of(groups, [&entry](gid_t group) {
             return entry.groups.contains(group);
           });
  });
  return found == users_.end() ? nullptr : found->who;
}

PrincipalPtr Principals::Find(const std::string& name, const std::string& tenant,
                              absl::Time now) const {
  const auto found = std::ranges::find_if(all_, [&](const PrincipalPtr& who) {
    return who->name == name && who->tenant == tenant && who->expires > now;
  });
  return found == all_.end() ? nullptr : *found;
}

}  // namespace prefixd::daemon
