#include "client/cli/token_options.h"

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "client/cli/add_command.h"

namespace prefixd::cli {
namespace {

absl::Status ReadBytes(const char* flag, const std::string& text, uint64_t* bytes) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<base::Size> size = base::ParseSize(text);
  if (!size.ok() || size->percent > 0 || size->bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": \"", text, "\" is not a size like 512MiB or 20GiB"));
  }
  *bytes = size->bytes;
  return absl::OkStatus();
}

}  // namespace

void DeclareToken(CLI::App& app, Options* options, TokenTexts* texts) {
  CLI::App* token = AddCommand(
      app, options, Command::kToken, "token",
      "make a token for a caller, and its entry of the access file",
      "The access file holds the token's SHA-256 alone. prefixd reads the file again when it "
      "changes. No\n"
      "prefixd is asked.\n"
      "Examples:\n"
      "  prefixctl token --name vllm-1 --role worker --tenant a --file vllm-1.token\n"
      "  prefixctl --json token --name ops --role admin --tenant '*' | jq .entry");
  TokenRequest& request = options->token;
  token->add_option("--name", request.name, "of the caller: in the log and the audit log")
      ->required()
      ->type_name("NAME");
  token->add_option("--role", request.role, "what the caller may do: reader, worker or admin")
      ->required()
      ->check(CLI::IsMember({"reader", "worker", "admin"}))
      ->type_name("ROLE");
  token->add_option("--tenant", request.tenant, "whose spaces; '*': an admin's of all tenants")
      ->required()
      ->type_name("TENANT");
  token->add_option("--file", request.file, "write the token there, mode 0600; else it is printed")
      ->type_name("PATH");
  token->add_option("--expires", request.expires, "when it ends, as 2027-01-01T00:00:00Z")
      ->type_name("TIME");
  token->add_option("--sessions", request.sessions, "at most so many at a time")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  token->add_option("--requests-per-s", request.requests_per_s, "at most so many calls")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  token->add_option("--lease-bytes", texts->lease_bytes, "pages of all its leases at a time")
      ->type_name("SIZE");
  token
      ->add_option("--bytes-in-flight", texts->bytes_in_flight,
                   "what its streams of pages may make prefixd hold")
      ->type_name("SIZE");
}

absl::Status ReadToken(const TokenTexts& texts, Options* options) {
  if (options->command != Command::kToken) return absl::OkStatus();
  TokenRequest& request = options->token;
  PREFIXD_RETURN_IF_ERROR(ReadBytes("--lease-bytes", texts.lease_bytes, &request.lease_bytes));
  PREFIXD_RETURN_IF_ERROR(
      ReadBytes("--bytes-in-flight", texts.bytes_in_flight, &request.bytes_in_flight));
  return CheckToken(request);
}

}  // namespace prefixd::cli
