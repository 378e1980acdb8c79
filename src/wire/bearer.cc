#include "wire/bearer.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"

namespace prefixd::wire {
namespace {

class Interceptor final : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(std::string text) : text_(std::move(text)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kBearerKey, text_);
    }
    methods->Proceed();
  }

 private:
  const std::string text_;
};

class Factory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit Factory(std::shared_ptr<const Bearer> bearer) : bearer_(std::move(bearer)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    std::string text = bearer_->text();
    return text.empty() ? nullptr : new Interceptor(std::move(text));
  }

 private:
  const std::shared_ptr<const Bearer> bearer_;
};

constexpr std::string_view kScheme = "Bearer ";

}  // namespace

std::string BearerText(const base::Secret& secret) {
  return std::string(kScheme) + base::ToHex(secret);
}

std::optional<base::Secret> ReadBearer(std::string_view text) {
  base::Secret secret;
  if (text.size() != kScheme.size() + 2 * secret.size() || !text.starts_with(kScheme) ||
      !base::FromHex(text.substr(kScheme.size()), secret)) {
    return std::nullopt;
  }
  return secret;
}

absl::Status Bearer::Reload() {
  PREFIXD_ASSIGN_OR_RETURN(const std::optional<base::Secret> secret, base::ReadSecret(path_));
  if (!secret.has_value()) return absl::NotFoundError(absl::StrCat(path_, " is not there"));
  base::MutexLock lock(mutex_);
  text_ = BearerText(*secret);
  return absl::OkStatus();
}

std::string Bearer::text() const {
  base::MutexLock lock(mutex_);
  return text_;
}

std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> Carrying(
    std::shared_ptr<const Bearer> bearer) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> factories;
  if (bearer != nullptr) factories.push_back(std::make_unique<Factory>(std::move(bearer)));
  return factories;
}

std::string TokenFileFor(const std::string& address, const std::string& named) {
  if (absl::StartsWith(address, "unix:")) return "";
  if (!named.empty()) return named;
  const char* const variable = std::getenv("PREFIXD_TOKEN_FILE");
  return variable == nullptr ? "" : variable;
}

}  // namespace prefixd::wire
