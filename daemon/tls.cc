#include "daemon/tls.h"

#include <sys/stat.h>

#include <array>
#include <ctime>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "openssl/asn1.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "spdlog/spdlog.h"

#include "base/mutex.h"
#include "base/status.h"
#include "daemon/whole_file.h"
#include "grpc/grpc_security.h"
#include "os/files.h"

namespace prefixd::daemon {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

absl::Status Bad(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("tls: ", path, " ", why));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (text.ok()) return text;
  return absl::FailedPreconditionError(absl::StrCat("tls: ", text.status().message()));
}

Bio BioOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Certificate ReadCertificate(const std::string& pem) {
  return Certificate(PEM_read_bio_X509(BioOf(pem).get(), nullptr, nullptr, nullptr));
}

struct Material {
  std::string certificate, key, client_ca;
};

std::optional<time_t> TimeOf(const ASN1_TIME* time) {
  tm calendar{};
  if (ASN1_TIME_to_tm(time, &calendar) != 1) return std::nullopt;
  return ::timegm(&calendar);
}

// `valid_from`: set if the certificate is not valid yet.
absl::Status CheckDates(const std::string& path, const X509* certificate,
                        std::optional<time_t>* valid_from) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0) {
    return Bad(path, "is a certificate that has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) >= 0) {
    *valid_from = TimeOf(X509_get0_notBefore(certificate));
    return Bad(path, "is a certificate that is not valid yet");
  }
  return absl::OkStatus();
}

// `valid_from`: set if nothing but this time is missing.
absl::StatusOr<Material> ReadMaterial(const TlsFiles& files, std::optional<time_t>* valid_from) {
  valid_from->reset();
  Material material;
  PREFIXD_ASSIGN_OR_RETURN(material.certificate, ReadText(files.certificate));
  PREFIXD_ASSIGN_OR_RETURN(material.key, ReadText(files.key));
  const Certificate certificate = ReadCertificate(material.certificate);
  if (certificate == nullptr) return Bad(files.certificate, "holds no certificate in PEM");
  const Key key(PEM_read_bio_PrivateKey(BioOf(material.key).get(), nullptr, nullptr,
                                        const_cast<char*>("")));  // asks nobody for a password
  if (key == nullptr) return Bad(files.key, "holds no key in PEM without a password");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Bad(files.key, absl::StrCat("is not the key of ", files.certificate));
  }
  PREFIXD_RETURN_IF_ERROR(CheckDates(files.certificate, certificate.get(), valid_from));
  if (files.client_ca.empty()) return material;
  PREFIXD_ASSIGN_OR_RETURN(material.client_ca, ReadText(files.client_ca));
  if (ReadCertificate(material.client_ca) == nullptr) {
    return Bad(files.client_ca, "holds no certificate in PEM");
  }
  return material;
}

// What tells whether a file was replaced or written.
struct Mark {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t seconds = 0, nanoseconds = 0;
  bool operator==(const Mark&) const = default;
};
using Marks = std::array<Mark, 3>;

Mark MarkOf(const std::string& path) {
  struct stat info {};
  if (path.empty() || ::stat(path.c_str(), &info) != 0) return {};
  const timespec written = os::WrittenAt(info);
  return {static_cast<uint64_t>(info.st_dev), info.st_ino, static_cast<uint64_t>(info.st_size),
          written.tv_sec, written.tv_nsec};
}

Marks MarksOf(const TlsFiles& files) {
  return {MarkOf(files.certificate), MarkOf(files.key), MarkOf(files.client_ca)};
}

class Tls final : public grpc::ServerCredentials {
 public:
  Tls(TlsFiles files, const Marks& marks, Material first)
      : files_(std::move(files)), marks_(marks), next_(std::move(first)), has_next_(true) {
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            files_.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                     : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
            &Tls::Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
  }
  ~Tls() override { grpc_server_credentials_release(credentials_); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Tls*>(self)->Renew(config);
  }
  // gRPC calls it once at the start and before each handshake.
  grpc_ssl_certificate_config_reload_status Renew(grpc_ssl_server_certificate_config** config)
      PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    Look();
    if (!std::exchange(has_next_, false)) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{next_.key.c_str(), next_.certificate.c_str()};
    // gRPC wants authorities even if it asks no client for a certificate, and then uses none.
    const std::string& authorities = files_.client_ca.empty() ? next_.certificate : next_.client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    next_ = {};
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }
  void Look() PREFIXD_REQUIRES(mutex_) {
    const Marks marks = MarksOf(files_);
    const bool is_due = valid_from_.has_value() && std::time(nullptr) >= *valid_from_;
    if (marks == marks_ && !is_due) return;
    marks_ = marks;
    absl::StatusOr<Material> material = ReadMaterial(files_, &valid_from_);
    if (!material.ok()) {
      spdlog::warn("{}; the certificate before stays in use{}",
                   std::string(material.status().message()),
                   valid_from_.has_value() ? " until then" : "");
      return;
    }
    next_ = *std::move(material);
    has_next_ = true;
    spdlog::info("tls: {} was replaced and is in use", files_.certificate);
  }

  const TlsFiles files_;
  grpc_server_credentials* credentials_ = nullptr;
  base::Mutex mutex_;
  Marks marks_ PREFIXD_GUARDED_BY(mutex_);
  std::optional<time_t> valid_from_ PREFIXD_GUARDED_BY(mutex_);  // of files that wait for it
  Material next_ PREFIXD_GUARDED_BY(mutex_);                     // what gRPC does not have yet
  bool has_next_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTls(const TlsFiles& files) {
  const Marks marks = MarksOf(files);
  std::optional<time_t> valid_from;
  PREFIXD_ASSIGN_OR_RETURN(Material material, ReadMaterial(files, &valid_from));
  return std::shared_ptr<grpc::ServerCredentials>(new Tls(files, marks, std::move(material)));
}

}  // namespace prefixd::daemon
