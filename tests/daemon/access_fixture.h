// The real program with an access file, a token for each caller, and certificates made by openssl.
#pragma once
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/generic/generic_stub.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {

inline std::string DigestOf(const base::Secret& secret) {
  return base::ToHex(base::Sha256(secret));
}

inline base::Secret SecretOf(uint8_t seed) {
  base::Secret secret;
  secret.fill(std::byte{seed});
  return secret;
}

class AccessTest : public ProgramTest {
 protected:
  std::string Path(const std::string& name) const { return dir_.path() + "/" + name; }

  // Replaces a file as an editor does: a reader sees the old one or the new one.
  void WriteFile(const std::string& name, const std::string& text) {
    {
      std::ofstream file(Path(name + ".new"));
      file << text;
    }
    std::filesystem::rename(Path(name + ".new"), Path(name));
  }
  // Runs openssl; the machines of tests have it, as prefixd's own build needs its library.
  void OpenSsl(const std::string& arguments) {
    const std::string command =
        "cd " + dir_.path() + " && openssl " + arguments + " 2>>openssl.log";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void MakeAuthority(const std::string& name) {
    OpenSsl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
            name + " -keyout " + name + ".key -out " + name + ".pem");
  }
  void MakeCertificate(const std::string& name, const std::string& authority,
                       const std::string& host) {
    OpenSsl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
            " -keyout " + name + ".key -out " + name + ".csr");
    {
      std::ofstream extensions(Path(name + ".ext"));
      extensions << "subjectAltName=" << host << "\n";
    }
    OpenSsl("x509 -req -in " + name + ".csr -CA " + authority + ".pem -CAkey " + authority +
            ".key -CAcreateserial -days 2 -extfile " + name + ".ext -out " + name + ".pem");
  }
  // One that is valid for an hour from `from` on; "ca.key" and "NAME.key" are there.
  void MakeCertificateOfAnHour(const std::string& name, const std::string& host, absl::Time from) {
    OpenSsl("req -new -key " + name + ".key -subj /CN=" + name + " -out " + name + ".csr");
    std::ofstream(Path(name + ".ext")) << "subjectAltName=" << host << "\n";
    std::ofstream(Path("index.txt"));
    std::ofstream(Path("ca.conf")) << "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\n"
                                      "new_certs_dir=.\nrand_serial=yes\ndefault_md=sha256\n"
                                      "policy=p\n[p]\ncommonName=supplied\n";
    const auto date = [](absl::Time time) {
      return absl::FormatTime("%Y%m%d%H%M%SZ", time, absl::UTCTimeZone());
    };
    OpenSsl("ca -batch -notext -config ca.conf -cert ca.pem -keyfile ca.key -in " + name +
            ".csr -extfile " + name + ".ext -startdate " + date(from) + " -enddate " +
            date(from + absl::Hours(1)) + " -out " + name + ".pem");
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Starts the program on TCP; its log says the port.
  void StartOnTcp(const std::vector<std::pair<std::string, std::string>>& settings) {
    auto args = Plus(Args(), "--listen", "127.0.0.1:0");
    for (const auto& [name, value] : settings) args = Plus(args, name, value);
    pid_ = Start(args);
    ASSERT_TRUE(Serves()) << Log();
    const std::string log = Log();
    const size_t at = log.find(" port ");
    ASSERT_NE(at, std::string::npos) << log;
    port_ = std::stoi(log.substr(at + 6));
  }
  std::string tcp() const { return "127.0.0.1:" + std::to_string(port_); }

  struct Client {
    std::string ca, certificate, host;  // files' names without .pem; host: that it expects
  };
  std::shared_ptr<grpc::Channel> TlsChannel(const Client& client) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = Read(Path(client.ca + ".pem"));
    if (!client.certificate.empty()) {
      options.pem_cert_chain = Read(Path(client.certificate + ".pem"));
      options.pem_private_key = Read(Path(client.certificate + ".key"));
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (!client.host.empty()) arguments.SetSslTargetNameOverride(client.host);
    return grpc::CreateCustomChannel(tcp(), grpc::SslCredentials(options), arguments);
  }

  // Calls any verb, as `bearer`, with `message` as it is.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& verb,
                           const std::optional<base::Secret>& bearer,
                           const std::string& message = "") {
    grpc::GenericStub stub(channel);
    Context context(5);
    if (bearer.has_value()) context.AddMetadata("authorization", wire::BearerText(*bearer));
    std::string method = "/prefixd.v1." + verb;
    method[method.rfind('.')] = '/';
    grpc::CompletionQueue queue;
    auto call = stub.PrepareCall(&context, method, &queue);
    const auto step = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    step();
    const grpc::Slice slice(message);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    step();
    // A stream that was let in stays open: its first message, or its end, is enough.
    grpc::ByteBuffer reply;
    call->Read(&reply, nullptr);
    const bool answered = step();
    if (answered) context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    step();
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
    return answered ? grpc::Status::OK : status;
  }
  static bool IsRefused(const grpc::Status& status) {
    return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
           status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
  }

  // Returns how often `part` stands in a file.
  size_t Times(const std::string& name, const std::string& part) const {
    const std::string text = Read(Path(name));
    size_t times = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      ++times;
    }
    return times;
  }
  // Asks until `done` says so; false after 20 s.
  template <typename Done>
  static bool Eventually(Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }

  std::string Entry(const std::string& name, uint8_t token, const std::string& tenant,
                    const std::string& role, const std::string& more = "") {
    return R"({"name": ")" + name + R"(", "sha256": ")" + DigestOf(SecretOf(token)) +
           R"(", "tenant": ")" + tenant + R"(", "role": ")" + role + "\"" + more + "}";
  }
  // The process that runs this test is an admin of all tenants on the unix socket.
  std::string AccessFile(const std::vector<std::string>& tokens) {
    std::string text = R"({"tokens": [)";
    for (size_t i = 0; i < tokens.size(); ++i) text += (i == 0 ? "" : ",\n") + tokens[i];
    return text + R"(], "unix": [{"name": "ops", "uids": [)" + std::to_string(::getuid()) +
           R"(], "tenant": "*", "role": "admin"}]})";
  }
  uint64_t Counted(const std::string& name) {
    v1::GetStatsReply reply;
    Context context;
    const auto admin = v1::Admin::NewStub(Worker::Channel(Worker::AdminOf(target())));
    EXPECT_TRUE(admin->GetStats(&context, {}, &reply).ok());
    for (const v1::Count& count : reply.counters()) {
      if (count.name() == name) return count.value();
    }
    return 0;
  }
  std::string TokenFile(uint8_t token) {
    const std::string path = Path("token" + std::to_string(token));
    EXPECT_TRUE(base::WriteSecret(path, SecretOf(token)).ok());
    return path;
  }

  pid_t pid_ = 0;
  int port_ = 0;
};

}  // namespace prefixd::testing
