// Who may call: TLS, roles, tenants, limits and the audit log, against the real program.
#include <filesystem>

#include "absl/time/clock.h"

#include "daemon/access/principals.h"
#include "daemon/access/roles.h"
#include "tests/daemon/access_fixture.h"
#include "tests/daemon/fd_client.h"

namespace prefixd::testing {
namespace {

using daemon::Principals;
using daemon::Role;
using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Not;

// Every RPC of the protos: "Admin.Clear".
std::vector<std::string> AllVerbs() {
  std::vector<std::string> verbs;
  for (const auto* file :
       {v1::AttachRequest::descriptor()->file(), v1::ClearRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const auto* service = file->service(i);
      for (int j = 0; j < service->method_count(); ++j)
        verbs.push_back(service->name() + "." + service->method(j)->name());
    }
  }
  return verbs;
}

// S6: a new RPC without a line is red.
TEST(RolesTest, S6TheTableHasOneLineForEachRpcAndNoOther) {
  std::vector<std::string> lines;
  for (const daemon::RoleLine& line : daemon::RoleTable()) lines.emplace_back(line.verb);
  EXPECT_THAT(lines, ::testing::UnorderedElementsAreArray(AllVerbs()));
  EXPECT_NE(daemon::WhatIsMissing("Admin.Unknown", Role::kAdmin, true), "");
}

// S6
TEST_F(AccessTest, S6EachRoleMayCallWhatTheTableSaysAndNothingElse) {
  WriteFile("access.json", AccessFile({Entry("r", 1, "a", "reader"), Entry("w", 2, "a", "worker"),
                                       Entry("m", 3, "a", "admin"), Entry("o", 4, "*", "admin")}));
  StartOnTcp({{"--access", Path("access.json")}});
  const auto channel = Worker::Channel(tcp());
  struct Caller {
    uint8_t token;
    Role role;
    bool all;
  };
  for (const std::string& verb : AllVerbs()) {
    for (const Caller& caller : {Caller{1, Role::kReader, false}, Caller{2, Role::kWorker, false},
                                 Caller{3, Role::kAdmin, false}, Caller{4, Role::kAdmin, true}}) {
      SCOPED_TRACE(verb + " by token " + std::to_string(caller.token));
      const grpc::Status status = Call(channel, verb, SecretOf(caller.token));
      const std::string missing = daemon::WhatIsMissing(verb, caller.role, caller.all);
      // What is let in may still say that an empty request of a tenant is not the tenant's.
      if (verb == "Admin.Clear" && caller.token == 3) continue;
      EXPECT_EQ(status.error_code() == StatusCode::PERMISSION_DENIED, !missing.empty())
          << status.error_message();
      if (!missing.empty()) {
        EXPECT_THAT(status.error_message(), AllOf(HasSubstr(verb), HasSubstr(missing)));
      }
    }
    EXPECT_EQ(Call(channel, verb, std::nullopt).error_code(), StatusCode::UNAUTHENTICATED) << verb;
    EXPECT_EQ(Call(channel, verb, SecretOf(9)).error_code(), StatusCode::UNAUTHENTICATED) << verb;
  }
  EXPECT_GE(Counted("refused.role"), 20u);
  EXPECT_EQ(Counted("refused.no_token"), AllVerbs().size());
  EXPECT_EQ(Counted("refused.wrong_token"), AllVerbs().size());
  EXPECT_TRUE(Says("access: refused: "));
}

// S6
TEST_F(AccessTest, S6ARevokedOrExpiredTokenIsRefusedWithoutARestart) {
  WriteFile("access.json", AccessFile({Entry("w", 2, "a", "worker")}));
  StartOnTcp({{"--access", Path("access.json")}});
  const auto channel = Worker::Channel(tcp());
  EXPECT_FALSE(IsRefused(Call(channel, "PrefixCache.Match", SecretOf(2))));
  WriteFile("access.json", "{\n\"tokens\": [\n}");
  EXPECT_FALSE(IsRefused(Call(channel, "PrefixCache.Match", SecretOf(2))));
  EXPECT_TRUE(Says("line 3"));
  EXPECT_TRUE(Says("the file before stays in force"));
  WriteFile("access.json",
            AccessFile({Entry("w", 2, "a", "worker", R"(, "expires": "2020-01-01T00:00:00Z")")}));
  const grpc::Status expired = Call(channel, "PrefixCache.Match", SecretOf(2));
  EXPECT_EQ(expired.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(expired.error_message(), HasSubstr("expired at 2020"));
  WriteFile("access.json", AccessFile({}));
  EXPECT_EQ(Call(channel, "PrefixCache.Match", SecretOf(2)).error_code(),
            StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Counted("refused.expired"), 1u);
  EXPECT_EQ(Counted("access.bad_file"), 1u);
}

// S6
TEST_F(AccessTest, S6TenantsHaveSpacesOfTheirOwnAndSeeNoOther) {
  WriteFile("access.json", AccessFile({Entry("a", 1, "a", "worker"), Entry("b", 2, "b", "worker"),
                                       Entry("ma", 3, "a", "admin"), Entry("o", 4, "*", "admin")}));
  StartOnTcp({{"--access", Path("access.json")}});
  Worker a(tcp(), TokenFile(1)), b(tcp(), TokenFile(2)), admin(tcp(), TokenFile(3)),
      all(tcp(), TokenFile(4));
  const block::SpaceIdentity identity = SmallIdentity();
  v1::OpenSpaceReply of_a, of_b;
  a.Attach("a");
  ASSERT_TRUE(a.OpenSpace(identity, &of_a).ok());
  v1::CommitReply stored;
  ASSERT_TRUE(a.Store(identity, of_a.space(), SomeTokens(1, 40), &stored).ok());
  ASSERT_EQ(stored.stored_tokens(), 40u);
  b.Attach("b");
  ASSERT_TRUE(b.OpenSpace(identity, &of_b).ok());
  EXPECT_NE(of_a.space_id(), of_b.space_id());
  EXPECT_TRUE(of_b.created());
  EXPECT_EQ(of_b.nearest_model(), "");  // not even that somebody has this model
  v1::AcquireReply acquired;
  ASSERT_TRUE(b.Acquire(of_b.space(), SomeTokens(1, 40), &acquired).ok());
  EXPECT_EQ(acquired.answers(0).matched_tokens(), 0u);
  EXPECT_FALSE(b.Acquire(of_a.space(), SomeTokens(1, 40), &acquired).ok());

  const auto spaces = [](Worker& who) {
    Context context;
    v1::ListSpacesReply reply;
    EXPECT_TRUE(who.admin->ListSpaces(&context, {}, &reply).ok());
    std::vector<std::string> ids;
    for (const auto& space : reply.spaces()) ids.push_back(space.stats().space_id());
    return ids;
  };
  EXPECT_THAT(spaces(a), ::testing::ElementsAre(of_a.space_id()));
  EXPECT_THAT(spaces(b), ::testing::ElementsAre(of_b.space_id()));
  EXPECT_EQ(spaces(all).size(), 2u);
  Context stats_context;
  v1::GetStatsReply stats;
  ASSERT_TRUE(b.admin->GetStats(&stats_context, {}, &stats).ok());
  ASSERT_EQ(stats.spaces_size(), 1);
  EXPECT_EQ(stats.spaces(0).space_id(), of_b.space_id());
  EXPECT_EQ(stats.counters_size(), 0);

  const auto clear = [](Worker& who, const std::string& space) {
    Context context;
    v1::ClearRequest request;
    request.set_space_id(space);
    v1::ClearReply reply;
    return who.admin->Clear(&context, request, &reply);
  };
  EXPECT_EQ(clear(admin, of_b.space_id()).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(clear(admin, "").error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(clear(a, of_a.space_id()).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(clear(admin, of_a.space_id()).ok());
  EXPECT_EQ(Counted("refused.tenant"), 2u);

  // A worker on this host that maps the arena would read both tenants' pages.
  Worker mapper(target());
  mapper.AttachArena();
  EXPECT_FALSE(mapper.attached.arena());
  // Nor is there a file with both tenants' pages, which the socket's group could read.
  EXPECT_FALSE(std::filesystem::exists(arena_path_));
  EXPECT_THAT(mapper.attached.why_no_arena(), HasSubstr("several tenants"));
}

// Direct calls pass no gate.
TEST_F(AccessTest, S6WithAnAccessFileThereAreNoDirectCalls) {
  WriteFile("access.json",
            absl::StrCat(R"({"unix": [{"name": "u", "tenant": "a", "role": "worker", "uids": [)",
                         ::geteuid(), "]}]}"));
  StartOnTcp({{"--access", Path("access.json")}});
  Worker mapper(target());
  mapper.AttachArena();
  if (!mapper.attached.arena()) GTEST_SKIP() << mapper.attached.why_no_arena();
  EXPECT_FALSE(mapper.attached.direct_calls());
  const Descriptor fd = ConnectFdSocket(dir_.path() + "/" + mapper.attached.fd_socket());
  ASSERT_TRUE(os::SendMessage(fd.get(), mapper.attached.key(), {}));
  EXPECT_EQ(ReceiveFiles(fd).text, mapper.attached.key());
  EXPECT_EQ(ReceiveFiles(fd).text, "") << "the connection is over";
}

// S6
TEST_F(AccessTest, S6APrincipalHasNoMoreSessionsAndRequestsThanItsLimits) {
  WriteFile("access.json", AccessFile({Entry("s", 1, "a", "worker", R"(, "sessions": 1)"),
                                       Entry("q", 2, "a", "worker", R"(, "requests_per_s": 1)")}));
  StartOnTcp({{"--access", Path("access.json")}});
  Worker first(tcp(), TokenFile(1)), second(tcp(), TokenFile(1));
  first.Attach("first");
  v1::AttachRequest request;
  request.set_protocol(1);
  EXPECT_EQ(second.TryAttach(request).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  const auto channel = Worker::Channel(tcp());
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    refused +=
        Call(channel, "PrefixCache.Match", SecretOf(2)).error_message().find("requests_per_s") !=
        std::string::npos;
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(Counted("refused.rate"), static_cast<uint64_t>(refused));
}

// S6
TEST_F(AccessTest, S6EachVerbThatShowsOrChangesSomethingHasALineInTheAuditLog) {
  WriteFile("access.json", AccessFile({Entry("r", 1, "a", "reader"), Entry("o", 4, "*", "admin")}));
  StartOnTcp({{"--access", Path("access.json")}, {"--audit-log", Path("audit")}});
  const auto channel = Worker::Channel(tcp());
  for (const std::string& verb : AllVerbs()) {
    if (!verb.starts_with("Admin.")) continue;
    Call(channel, verb, SecretOf(4));
    const std::string audit = Read(Path("audit"));
    const bool has =
        audit.find("audit: " + verb + " by token o (ipv4:127.0.0.1:") != std::string::npos;
    EXPECT_EQ(has, verb != "Admin.GetStats" && verb != "Admin.GetConfig") << verb << "\n" << audit;
  }
  Call(channel, "Admin.Clear", SecretOf(1));
  EXPECT_THAT(Read(Path("audit")),
              AllOf(HasSubstr("Admin.Clear by token o"), HasSubstr(": OK\n"),
                    HasSubstr("Admin.Clear by token r"), HasSubstr("refused, "),
                    ContainsRegex("Admin.SetBudgets by token o [^ ]*: no change: OK\n"),
                    ContainsRegex("Admin.ListSpaces by token o [^ ]*: everything: OK\n")));
  // Callers whom the access file does not name are refused and counted, and fill no file.
  const std::string before = Read(Path("audit"));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Call(channel, "Admin.Clear", SecretOf(9)).error_code(), StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(Read(Path("audit")), before);
  EXPECT_GE(Counted("refused.wrong_token"), 20u);
  // The admin socket, which no gate guards, is audited too.
  Context context;
  v1::ListSessionsReply sessions;
  const auto admin = v1::Admin::NewStub(Worker::Channel(Worker::AdminOf(target())));
  ASSERT_TRUE(admin->ListSessions(&context, {}, &sessions).ok());
  EXPECT_THAT(Read(Path("audit")),
              HasSubstr("Admin.ListSessions by user " + std::to_string(::getuid())));
}

// S6
TEST_F(AccessTest, S6TlsRefusesForeignAndExpiredCertificatesAndWrongHosts) {
  MakeAuthority("ca");
  MakeAuthority("foreign");
  MakeCertificate("server", "ca", "IP:127.0.0.1,DNS:cache.example");
  MakeCertificate("worker", "ca", "DNS:worker.example");
  MakeCertificate("stranger", "foreign", "DNS:worker.example");
  MakeCertificate("unknown", "ca", "DNS:unknown.example");
  MakeCertificate("old", "ca", "DNS:worker.example");
  MakeCertificateOfAnHour("old", "DNS:worker.example", absl::Now() - absl::Hours(2));
  WriteFile("access.json",
            R"({"certificates": [{"name": "worker.example", "tenant": "a", "role": "worker"}]})");
  StartOnTcp({{"--access", Path("access.json")},
              {"--tls-certificate", Path("server.pem")},
              {"--tls-key", Path("server.key")},
              {"--tls-client-ca", Path("ca.pem")}});
  const auto code = [this](const Client& client) {
    return Call(TlsChannel(client), "PrefixCache.Match", std::nullopt).error_code();
  };
  constexpr StatusCode kLetIn = StatusCode::NOT_FOUND;  // it has no session
  EXPECT_EQ(code({"ca", "worker", ""}), kLetIn);
  EXPECT_EQ(code({"ca", "worker", "cache.example"}), kLetIn);
  EXPECT_EQ(code({"ca", "worker", "other.example"}), StatusCode::UNAVAILABLE);
  EXPECT_EQ(code({"foreign", "worker", ""}), StatusCode::UNAVAILABLE);
  EXPECT_EQ(code({"ca", "", ""}), StatusCode::UNAVAILABLE);
  EXPECT_EQ(code({"ca", "stranger", ""}), StatusCode::UNAVAILABLE);
  EXPECT_EQ(code({"ca", "old", ""}), StatusCode::UNAVAILABLE);
  EXPECT_EQ(code({"ca", "unknown", ""}), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Counted("refused.unknown_certificate"), 1u);
  EXPECT_GE(Counted("refused.tls"), 3u);
  EXPECT_TRUE(Says("tls: a connection was refused"));
}

// S6
TEST_F(AccessTest, S6ACertificateIsReplacedWithoutARestartAndABadOneIsNot) {
  MakeAuthority("ca");
  MakeCertificate("server", "ca", "DNS:old.example");
  MakeCertificate("renewed", "ca", "DNS:new.example");
  WriteFile("access.json", AccessFile({Entry("w", 2, "a", "worker")}));
  StartOnTcp({{"--access", Path("access.json")},
              {"--tls-certificate", Path("server.pem")},
              {"--tls-key", Path("server.key")}});
  const auto reaches = [this](const std::string& host) {
    return Call(TlsChannel({"ca", "", host}), "PrefixCache.Match", SecretOf(2)).error_code() !=
           StatusCode::UNAVAILABLE;
  };
  EXPECT_TRUE(reaches("old.example"));
  WriteFile("server.pem", Read(Path("renewed.pem")));  // its key is missing yet
  EXPECT_TRUE(reaches("old.example"));
  EXPECT_TRUE(Says("is not the key of"));
  WriteFile("server.key", Read(Path("renewed.key")));
  EXPECT_TRUE(reaches("new.example"));
  EXPECT_FALSE(reaches("old.example"));
}

// S6: no file changes when the time comes.
TEST_F(AccessTest, S6ACertificateThatIsNotValidYetIsUsedOnceItIs) {
  MakeAuthority("ca");
  MakeCertificate("server", "ca", "DNS:old.example");
  WriteFile("access.json", AccessFile({Entry("w", 2, "a", "worker")}));
  StartOnTcp({{"--access", Path("access.json")},
              {"--tls-certificate", Path("server.pem")},
              {"--tls-key", Path("server.key")}});
  const auto reaches = [this](const std::string& host) {
    return Call(TlsChannel({"ca", "", host}), "PrefixCache.Match", SecretOf(2)).error_code() !=
           StatusCode::UNAVAILABLE;
  };
  WriteFile("later.key", Read(Path("server.key")));
  MakeCertificateOfAnHour("later", "DNS:new.example", absl::Now() + absl::Seconds(6));
  WriteFile("server.pem", Read(Path("later.pem")));
  EXPECT_TRUE(reaches("old.example"));
  EXPECT_TRUE(
      Says("is a certificate that is not valid yet; the certificate before stays in use "
           "until then"));
  EXPECT_TRUE(Eventually([&] { return reaches("new.example"); }));
}

TEST(PrincipalsTest, ABadFileNamesItsLineOrEntry) {
  const auto why = [](const std::string& text) {
    const auto read = Principals::Parse(text);
    return read.ok() ? "" : std::string(read.status().message());
  };
  EXPECT_THAT(why("{\n\n]"), HasSubstr("line 3"));
  EXPECT_THAT(why(R"({"tokens": [{"sessions": 1e999}]})"), HasSubstr("number overflow"));
  EXPECT_THAT(why(R"({"token": []})"), HasSubstr("unknown list \"token\""));
  EXPECT_THAT(why(R"({"certificates": [{"name": "x", "tenant": "a", "role": "owner"}]})"),
              HasSubstr("certificates[0] \"role\""));
  EXPECT_THAT(why(R"({"certificates": [{"name": "x", "tenant": "*", "role": "worker"}]})"),
              HasSubstr("role admin only"));
  EXPECT_THAT(
      why(R"({"certificates": [{"name": "x", "tenant": "a", "role": "worker", "leases": 1}]})"),
      HasSubstr("unknown field \"leases\""));
  // With less no Put would ever be let in.
  EXPECT_THAT(
      why(R"({"certificates": [{"name": "x", "tenant": "a", "role": "worker", "bytes_in_flight": 1}]})"),
      HasSubstr("\"bytes_in_flight\" is 1, one Put takes 4194304"));
  EXPECT_THAT(why(R"({"unix": [{"name": "x", "tenant": "a", "role": "worker"}]})"),
              HasSubstr("neither uids nor gids"));
  EXPECT_EQ(why("{}"), "");
}

}  // namespace
}  // namespace prefixd::testing
