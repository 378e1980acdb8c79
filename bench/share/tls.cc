// What TLS costs a Fetch over TCP: two daemons with the same pages, one with TLS, in turns.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "openssl/evp.h"

#include "base/status.h"
#include "bench/common/daemon_process.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/remote/loopback.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

constexpr double kAtMost = 1.15;  // of plain TCP's processor time

// CPU seconds that one core takes to encrypt a GB in TLS records of 16 KiB, without TLS.
double SealSecondsPerGb(const EVP_CIPHER* cipher, uint64_t bytes) {
  constexpr size_t kRecord = 16 << 10;
  std::vector<unsigned char> plain(kRecord), sealed(kRecord + 16);
  const std::vector<unsigned char> key(32, 1), nonce(12, 2);
  EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
  const double start = OwnCpuMicros();
  for (uint64_t at = 0; at < bytes; at += kRecord) {
    int size = 0;
    EVP_EncryptInit_ex(context, cipher, nullptr, key.data(), nonce.data());
    EVP_EncryptUpdate(context, sealed.data(), &size, plain.data(), kRecord);
    EVP_EncryptFinal_ex(context, sealed.data() + size, &size);
  }
  const double us = OwnCpuMicros() - start;
  EVP_CIPHER_CTX_free(context);
  return us * 1e3 / static_cast<double>(bytes);
}

// One daemon on TCP, and a session of a worker there that has fetched everything once.
class Served {
 public:
  // `flags`: TLS or none. False, and a failed check, when it does not come up.
  bool Open(Bench& bench, const std::string& name, const std::vector<std::string>& flags,
            uint64_t bytes) {
    daemon_ = StartDaemon(bench, name, flags, bytes);
    if (daemon_ == nullptr) return false;
    const absl::Status status = Store(flags.empty() ? "" : "tls://", bytes);
    return bench.Check(status.ok(), status.ToString());
  }

  // Fetches all pages. Adds what the client's process and the daemon's took.
  bool Fetch(Bench& bench, size_t side, MovedRounds* client, MovedRounds* daemon) {
    const pid_t pid = daemon_->pid();
    const double own = OwnCpuMicros(), theirs = CpuMicros(pid);
    Moved moved;
    const absl::Status status =
        FetchAll(*session_, source_, sequence_, answer_.lease(), false, &moved);
    if (!bench.Check(status.ok(), status.ToString())) return false;
    client->Add(side, moved.bytes, moved.us, OwnCpuMicros() - own);
    daemon->Add(side, moved.bytes, moved.us, CpuMicros(pid) - theirs);
    return true;
  }

 private:
  std::unique_ptr<DaemonProcess> StartDaemon(Bench& bench, const std::string& name,
                                             const std::vector<std::string>& flags,
                                             uint64_t bytes) {
    const std::string directory = bench.directory() + "/" + name;
    std::filesystem::create_directories(directory);
    port_ = FreePort();
    token_file_ = directory + "/token";
    DaemonProcess::Options options{
        .directory = directory,
        .ram = std::to_string(bytes * 3 / 2 + 192 * kMiB),
        .ssd = "off",
        .flags = {"--log-level", "warning", "--listen", absl::StrCat("127.0.0.1:", port_),
                  "--token-file", token_file_}};
    options.flags.insert(options.flags.end(), flags.begin(), flags.end());
    auto process = DaemonProcess::Start(options);
    if (!bench.Check(process.ok(), process.status().ToString())) return nullptr;
    return *std::move(process);
  }

  absl::Status Store(const std::string& scheme, uint64_t bytes) {
    PREFIXD_ASSIGN_OR_RETURN(session_,
                             RawSession::Open({.address = absl::StrCat(scheme, "127.0.0.1:", port_),
                                               .name = "share-tls",
                                               .wants_arena = false,
                                               .token_file = token_file_}));
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t space, session_->OpenSpace(source_.identity()));
    const uint64_t blocks = bytes / source_.block_bytes();
    sequence_ = MakeSequence(space, 1, static_cast<uint32_t>(blocks * PageSource::kBlockTokens));
    PREFIXD_RETURN_IF_ERROR(StorePut(*session_, source_, sequence_));
    PREFIXD_RETURN_IF_ERROR(AcquireAndCompare(*session_, source_, sequence_, &answer_));
    return FetchAll(*session_, source_, sequence_, answer_.lease(), true);
  }

  const PageSource source_{SharedGeometry()};
  std::unique_ptr<DaemonProcess> daemon_;
  uint16_t port_ = 0;
  std::string token_file_;
  std::unique_ptr<RawSession> session_;  // ended before the daemon
  RawSequence sequence_;
  v1::Answer answer_;
};

// Makes a certificate for 127.0.0.1 and has this process trust it. Returns the daemon's flags; none
// without openssl.
std::vector<std::string> MakeCertificate(const std::string& directory) {
  const std::string certificate = directory + "/tls.crt", key = directory + "/tls.key";
  const std::string command = absl::StrCat(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
      "-subj /CN=bench -addext subjectAltName=IP:127.0.0.1 -keyout ",
      key, " -out ", certificate, " 2>/dev/null");
  if (std::system(command.c_str()) != 0) return {};
  ::setenv("PREFIXD_TLS_CA", certificate.c_str(), /*overwrite=*/1);
  return {"--tls-certificate", certificate, "--tls-key", key};
}

void Judge(Bench& bench, const std::string& who, const MovedRounds& rounds) {
  const double tls = rounds.CpuSecondsPerGb(0), plain = rounds.CpuSecondsPerGb(1);
  bench.Judge({.name = absl::StrCat("S6 tls-fetch, ", who),
               .ours = absl::StrCat("TLS ", tls, " CPU s/GB"),
               .reference = absl::StrCat("plain TCP ", plain, " CPU s/GB"),
               .seen = tls / plain,
               .limit = kAtMost,
               .runs = rounds.cpu_us[0].size(),
               .spread_percent = SpreadPercent(rounds.cpu_us[0])});
}

}  // namespace

void ShareTls(Bench& bench) {
  const uint64_t wanted = bench.Parameter("tls_bytes", 8 * kMiB, 256 * kMiB, 512 * kMiB);
  const uint64_t rounds = bench.Parameter("tls_rounds", 2, 9, 15);
  const uint64_t bytes = FittingBytes(bench, wanted);
  const std::vector<std::string> flags = MakeCertificate(bench.directory());
  if (flags.empty()) return bench.Note("tls: left out, there is no openssl in PATH");
  Served tls, plain;
  if (!tls.Open(bench, "tls", flags, bytes) || !plain.Open(bench, "tcp", {}, bytes)) return;
  MovedRounds client, daemon;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (!tls.Fetch(bench, 0, &client, &daemon) || !plain.Fetch(bench, 1, &client, &daemon)) return;
  }
  Judge(bench, "client", client);
  Judge(bench, "daemon", daemon);
  bench.Add(
      {"tls-fetch, rate",
       {{"tls_bytes_per_s", client.bytes_per_s(0)}, {"tcp_bytes_per_s", client.bytes_per_s(1)}}});
  bench.Add({"encrypting alone, CPU seconds a GB",
             {{"AES-128-GCM", SealSecondsPerGb(EVP_aes_128_gcm(), bytes)},
              {"AES-256-GCM", SealSecondsPerGb(EVP_aes_256_gcm(), bytes)},
              {"ChaCha20-Poly1305", SealSecondsPerGb(EVP_chacha20_poly1305(), bytes)}}});
}

}  // namespace prefixd::bench
