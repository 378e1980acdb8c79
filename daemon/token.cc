#include "daemon/token.h"

#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "wire/bearer.h"

namespace prefixd::daemon {

absl::StatusOr<Token> LoadToken(const std::string& path) {
  const auto named = [](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("token file: ", std::string(status.message())));
  };
  const absl::StatusOr<std::optional<base::Secret>> found = base::ReadSecret(path);
  if (!found.ok()) return named(found.status());
  if (found->has_value()) return Token{.secret = **found};
  PREFIXD_ASSIGN_OR_RETURN(const base::Secret fresh, base::RandomSecret());
  if (const absl::Status written = base::WriteSecret(path, fresh); !written.ok())
    return named(written);
  return Token{.secret = fresh};
}

grpc::Status CheckToken(const Token* token, const grpc::ServerContextBase& context) {
  if (token == nullptr) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto sent = metadata.find(wire::kBearerKey);
  const std::string_view text = sent == metadata.end()
                                    ? std::string_view()
                                    : std::string_view(sent->second.data(), sent->second.size());
  const std::optional<base::Secret> secret = wire::ReadBearer(text);
  if (secret.has_value() && base::Equal(*secret, token->secret)) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED,
          absl::StrCat("tcp: ", text.empty() ? "no token came with the call" : "wrong token",
                       "; name a copy of the file that prefixd's --token-file names, by the "
                       "client's token_file, prefixctl's --token-file or $PREFIXD_TOKEN_FILE, or "
                       "use the unix socket")};
}

}  // namespace prefixd::daemon
