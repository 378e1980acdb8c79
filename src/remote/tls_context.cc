#include <arpa/inet.h>

#include "openssl/ssl.h"
#include "openssl/x509v3.h"

#include "base/status.h"
#include "remote/tls_socket.h"
#include "remote/transport.h"

namespace prefixd::remote {
namespace {

absl::Status BadFile(const std::string& what, const std::string& file) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", file, " cannot be used: ", TakeTlsError("OpenSSL does not say why")));
}

bool IsIpAddress(const std::string& host) {
  in6_addr any{};
  return inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

absl::Status UseFiles(SSL_CTX* context, const TlsFiles& files) {
  if (files.ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else if (SSL_CTX_load_verify_locations(context, files.ca_file.c_str(), nullptr) != 1) {
    return BadFile("the file of authorities", files.ca_file);
  }
  if (files.cert_file.empty() != files.key_file.empty()) {
    return absl::InvalidArgumentError(
        "a client's certificate and its key are given together or not at all");
  }
  if (files.cert_file.empty()) return absl::OkStatus();
  if (SSL_CTX_use_certificate_chain_file(context, files.cert_file.c_str()) != 1) {
    return BadFile("the certificate", files.cert_file);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key_file.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return BadFile("the key", files.key_file);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TlsContext>> TlsContext::Make(const TlsFiles& files) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return absl::InvalidArgumentError("OpenSSL gives no context");
  std::shared_ptr<const TlsContext> made(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Without it a server could make sending wait until something comes.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  PREFIXD_RETURN_IF_ERROR(UseFiles(context, files));
  return made;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

ssl_st* TlsContext::NewClient(int socket, const std::string& host) const {
  SSL* const ssl = SSL_new(context_);
  BIO* const bio = ssl == nullptr ? nullptr : NewSocketBio(socket);
  bool good = bio != nullptr;
  if (good) {
    SSL_set_bio(ssl, bio, bio);
    SSL_set_connect_state(ssl);
    if (IsIpAddress(host)) {
      good = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
    } else {
      good =
          SSL_set1_host(ssl, host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
    }
  }
  if (good) return ssl;
  SSL_free(ssl);
  return nullptr;
}

}  // namespace prefixd::remote
