#include "client/cli/commands.h"

#include "absl/strings/str_cat.h"

#include "base/size.h"
#include "base/status.h"
#include "base/version.h"
#include "client/cli/arenas.h"
#include "client/cli/carry.h"
#include "client/cli/carry_options.h"
#include "client/cli/daemon_calls.h"
#include "client/cli/doctor.h"
#include "client/cli/events.h"
#include "client/cli/explain.h"
#include "client/cli/identity_file.h"
#include "client/cli/json.h"
#include "client/cli/model_folder.h"
#include "client/cli/names.h"
#include "client/cli/progress.h"
#include "client/cli/top/top.h"
#include "client/cli/units.h"
#include "client/cli/views.h"
#include "wire/admin.h"
#include "wire/bearer.h"
#include "wire/target.h"

namespace prefixd::cli {
namespace {

using Space = v1::ListSpacesReply::Space;

// What a command prints, and its exit code, unless the daemon refused it.
struct Outcome {
  std::string text;
  int exit_code = kExitOk;
};

// Where progress is shown: where somebody reads along, unless a program reads the output.
std::ostream* ProgressOn(const Options& options, const Terminal& terminal) {
  return terminal.can_ask && !options.json ? &terminal.err : nullptr;
}

// Returns the only space whose id begins with `digits`.
absl::StatusOr<Space> FindSpace(DaemonCalls& calls, const std::string& digits) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListSpacesReply reply, calls.ListSpaces({}));
  const Space* found = nullptr;
  for (const Space& space : reply.spaces()) {
    if (HexId(space.stats().space_id()).rfind(digits, 0) != 0) continue;
    if (found != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "several spaces begin with ", digits, ", ", ShortId(found->stats().space_id()), " and ",
          ShortId(space.stats().space_id()), " among them: give more digits"));
    }
    found = &space;
  }
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat("no space begins with ", digits,
                                            ": prefixctl spaces lists the ", reply.spaces_size(),
                                            " that prefixd knows"));
  }
  return *found;
}

// FindSpace(), with the salt set in the identity so that the space can be opened. The caller must
// give the salt: prefixd does not show it.
absl::StatusOr<Space> FindOpenable(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(Space space, FindSpace(calls, options.space));
  const std::string what = absl::StrCat("space ", ShortId(space.stats().space_id()));
  PREFIXD_RETURN_IF_ERROR(CheckSalt(what, space.salt_digest(), options.salt));
  if (!space.salt_digest().empty()) space.mutable_identity()->set_salt(options.salt);
  return space;
}

absl::StatusOr<Outcome> Status(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const std::string health, calls.Health());
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, calls.GetStats());
  const StatusInput input{.address = options.server, .health = health, .stats = stats};
  return Outcome{options.json ? StatusJson(input) : StatusView(input)};
}

absl::StatusOr<Outcome> Stats(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, calls.GetStats());
  return Outcome{options.json ? StatsJson(stats) : StatsView(stats)};
}

absl::StatusOr<Outcome> SetLimits(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const Space space, FindSpace(calls, options.space));
  v1::SetSpaceLimitsRequest request;
  request.set_space_id(space.stats().space_id());
  v1::SpaceLimits* limits = request.mutable_limits();
  limits->set_ram_floor_bytes(options.ram_floor);
  limits->set_ram_ceiling_bytes(options.ram_ceiling);
  limits->set_ssd_ceiling_bytes(options.ssd_ceiling);
  limits->set_ssd_floor_bytes(options.ssd_floor);
  limits->set_ttl_ms(static_cast<uint64_t>(options.ttl.count()));
  PREFIXD_ASSIGN_OR_RETURN(const v1::SetSpaceLimitsReply reply, calls.SetSpaceLimits(request));
  return Outcome{options.json ? LimitsJson(request, reply) : LimitsView(request, reply)};
}

absl::StatusOr<Outcome> Budget(DaemonCalls& calls, const Options& options) {
  v1::SetBudgetsRequest request;
  request.set_ram_bytes(options.ram_bytes);
  request.set_ssd_bytes(options.ssd_bytes);
  PREFIXD_ASSIGN_OR_RETURN(const v1::SetBudgetsReply reply, calls.SetBudgets(request));
  return Outcome{options.json ? ReplyJson(reply) : BudgetView(reply)};
}

absl::StatusOr<Outcome> Spaces(DaemonCalls& calls, const Options& options) {
  if (options.set_limits) return SetLimits(calls, options);
  v1::ListSpacesRequest request;
  if (!options.space.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindSpace(calls, options.space));
    request.set_explain_against(space.stats().space_id());
  }
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListSpacesReply reply, calls.ListSpaces(request));
  if (options.json) return Outcome{SpacesJson(reply)};
  if (options.space.empty()) return Outcome{SpacesView(reply)};
  return Outcome{ExplainView(reply, request.explain_against())};
}

absl::StatusOr<Outcome> Match(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const Space space, FindOpenable(calls, options));
  PREFIXD_ASSIGN_OR_RETURN(const v1::Answer answer, calls.Match(space, options.tokens));
  const MatchInput input{.space = space,
                         .requested_tokens = static_cast<uint32_t>(options.tokens.size()),
                         .answer = answer};
  return Outcome{options.json ? MatchJson(input) : MatchView(input),
                 answer.matched_tokens() > 0 ? kExitOk : kExitNothing};
}

// Returns true to go on. Asks if somebody can answer.
bool Confirmed(const std::string& what, const Options& options, const Terminal& terminal) {
  if (options.yes) return true;
  if (!terminal.can_ask) {
    terminal.err << "prefixctl: clear would forget " << what
                 << "; nobody can be asked here: say --yes\n";
    return false;
  }
  terminal.err << "Forget " << what << ", in RAM and on SSD? [y/N] " << std::flush;
  std::string answer;
  std::getline(terminal.in, answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return true;
  terminal.err << "nothing was cleared\n";
  return false;
}

void AddStep(const v1::ClearReply& step, v1::ClearReply* sum) {
  sum->set_spaces(sum->spaces() + step.spaces());
  sum->set_bytes(sum->bytes() + step.bytes());
  sum->set_passed_bytes(sum->passed_bytes() + step.passed_bytes());
  sum->set_total_bytes(step.total_bytes());
  sum->set_removed_bytes(sum->removed_bytes() + step.removed_bytes());
  sum->set_rewritten_bytes(sum->rewritten_bytes() + step.rewritten_bytes());
  sum->set_border_waits(sum->border_waits() || step.border_waits());
  sum->set_remote_waits(sum->remote_waits() || step.remote_waits());
  if (step.next() == 0 || sum->leased_bytes() == 0) sum->set_leased_bytes(step.leased_bytes());
}

absl::StatusOr<Outcome> Purge(DaemonCalls& calls, v1::ClearRequest request, const Options& options,
                              const Terminal& terminal) {
  Progress progress(ProgressOn(options, terminal));
  v1::ClearReply sum;
  request.set_purge(true);
  do {
    PREFIXD_ASSIGN_OR_RETURN(const v1::ClearReply step, calls.Clear(request));
    AddStep(step, &sum);
    progress.Show(sum.passed_bytes(), sum.total_bytes(),
                  absl::StrCat(base::FormatBytes(sum.removed_bytes()), " removed"));
    request.set_cursor(step.next());
  } while (request.cursor() != 0);
  return Outcome{options.json ? ReplyJson(sum) : PurgeView(sum),
                 sum.leased_bytes() == 0 ? kExitOk : kExitRefused};
}

absl::StatusOr<Outcome> Clear(DaemonCalls& calls, const Options& options,
                              const Terminal& terminal) {
  v1::ClearRequest request;
  std::string what = "every space";
  if (!options.all) {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindSpace(calls, options.space));
    request.set_space_id(space.stats().space_id());
    what = absl::StrCat("space ", ShortId(request.space_id()), " (", space.identity().model(), ")");
  }
  if (!Confirmed(what, options, terminal)) return Outcome{"", kExitUsage};
  if (options.purge) return Purge(calls, request, options, terminal);
  PREFIXD_ASSIGN_OR_RETURN(const v1::ClearReply reply, calls.Clear(request));
  return Outcome{options.json ? ReplyJson(reply) : ClearView(reply)};
}

absl::StatusOr<Outcome> Flush(DaemonCalls& calls, const Options& options,
                              const Terminal& terminal) {
  Progress progress(ProgressOn(options, terminal));
  uint64_t most = 0;  // that was dirty at once
  const auto show = [&](uint64_t dirty_bytes) {
    most = std::max(most, dirty_bytes);
    progress.Show(most - dirty_bytes, most,
                  absl::StrCat(base::FormatBytes(dirty_bytes), " in RAM only"));
  };
  PREFIXD_ASSIGN_OR_RETURN(const v1::FlushReply reply, calls.Flush(show));
  return Outcome{options.json ? ReplyJson(reply) : FlushView(reply),
                 reply.dirty_bytes() == 0 ? kExitOk : kExitRefused};
}

absl::StatusOr<Outcome> Prefetch(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const Space space, FindOpenable(calls, options));
  PREFIXD_ASSIGN_OR_RETURN(const v1::PrefetchReply::Hint hint,
                           calls.Prefetch(space, options.tokens));
  return Outcome{options.json ? ReplyJson(hint) : PrefetchView(hint),
                 hint.restorable_tokens() > 0 ? kExitOk : kExitNothing};
}

void AddStep(const v1::VerifyReply& step, v1::VerifyReply* sum) {
  sum->set_pages(sum->pages() + step.pages());
  sum->set_bytes(sum->bytes() + step.bytes());
  sum->set_bad(sum->bad() + step.bad());
  sum->set_unreadable(sum->unreadable() + step.unreadable());
  sum->set_in_use(sum->in_use() + step.in_use());
  sum->set_passed_bytes(sum->passed_bytes() + step.passed_bytes());
  sum->set_total_bytes(step.total_bytes());
}

absl::StatusOr<Outcome> Verify(DaemonCalls& calls, const Options& options,
                               const Terminal& terminal) {
  Progress progress(ProgressOn(options, terminal));
  v1::VerifyReply sum;
  v1::VerifyRequest request;
  request.set_bytes_per_second(options.rate);
  do {
    PREFIXD_ASSIGN_OR_RETURN(const v1::VerifyReply step, calls.Verify(request));
    AddStep(step, &sum);
    progress.Show(sum.passed_bytes(), sum.total_bytes(),
                  absl::StrCat(base::FormatBytes(sum.bytes()), ", ", CountText(sum.bad()), " bad"));
    request.set_cursor(step.next());
  } while (request.cursor() != 0);
  return Outcome{options.json ? ReplyJson(sum) : VerifyView(sum),
                 sum.bad() + sum.unreadable() == 0 ? kExitOk : kExitRefused};
}

// Returns the only session whose id begins with `digits`.
absl::StatusOr<uint64_t> FindSession(const v1::ListSessionsReply& reply,
                                     const std::string& digits) {
  uint64_t found = 0;
  for (const v1::ListSessionsReply::Session& session : reply.sessions()) {
    if (HexId(session.session()).rfind(digits, 0) != 0) continue;
    if (found != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("several sessions begin with ", digits, ", ", HexId(found), " and ",
                       HexId(session.session()), " among them: give more digits"));
    }
    found = session.session();
  }
  if (found != 0) return found;
  return absl::NotFoundError(absl::StrCat("no session begins with ", digits,
                                          ": prefixctl sessions lists the ", reply.sessions_size(),
                                          " that there are"));
}

absl::StatusOr<Outcome> Sessions(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListSessionsReply reply, calls.ListSessions());
  if (options.session.empty()) {
    return Outcome{options.json ? ReplyJson(reply) : SessionsView(reply)};
  }
  PREFIXD_ASSIGN_OR_RETURN(const uint64_t session, FindSession(reply, options.session));
  PREFIXD_ASSIGN_OR_RETURN(const v1::EndSessionReply ended, calls.EndSession(session));
  return Outcome{options.json ? ReplyJson(ended) : EndSessionView(ended)};
}

absl::StatusOr<Outcome> Leases(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListLeasesReply reply, calls.ListLeases());
  return Outcome{options.json ? ReplyJson(reply) : LeasesView(reply)};
}

absl::StatusOr<Outcome> Pin(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const Space space, FindOpenable(calls, options));
  PREFIXD_ASSIGN_OR_RETURN(const v1::PinReply reply, calls.Pin(space, options.tokens, options.ttl));
  const PinInput input{.space = space,
                       .requested_tokens = static_cast<uint32_t>(options.tokens.size()),
                       .ttl_s = static_cast<double>(options.ttl.count()) * 1e-3,
                       .reply = reply};
  return Outcome{options.json ? PinJson(input) : PinView(input),
                 reply.pinned_tokens() > 0 ? kExitOk : kExitNothing};
}

absl::StatusOr<Outcome> Unpin(DaemonCalls& calls, const Options& options) {
  absl::StatusOr<v1::UnpinReply> reply;
  if (options.pin != 0) {
    reply = calls.Unpin(options.pin);
  } else {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindOpenable(calls, options));
    reply = calls.Unpin(space, options.tokens);
  }
  PREFIXD_RETURN_IF_ERROR(reply.status());
  return Outcome{options.json ? ReplyJson(*reply) : UnpinView(*reply)};
}

absl::StatusOr<Outcome> Pins(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListPinsReply reply, calls.ListPins());
  return Outcome{options.json ? ReplyJson(reply) : PinsView(reply)};
}

absl::StatusOr<Outcome> Prefixes(DaemonCalls& calls, const Options& options) {
  v1::ListPrefixesRequest request;
  request.set_most(options.most);
  if (!options.space.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindSpace(calls, options.space));
    request.set_space_id(space.stats().space_id());
  }
  PREFIXD_ASSIGN_OR_RETURN(const v1::ListPrefixesReply reply, calls.ListPrefixes(request));
  return Outcome{options.json ? ReplyJson(reply) : PrefixesView(reply)};
}

absl::StatusOr<Outcome> Events(DaemonCalls& calls, const Options& options,
                               const Terminal& terminal) {
  std::string space_id;
  if (!options.space.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindSpace(calls, options.space));
    space_id = space.stats().space_id();
  }
  PREFIXD_RETURN_IF_ERROR(RunEvents(calls, options, space_id, terminal.out));
  return Outcome{};
}

absl::StatusOr<Outcome> Why(DaemonCalls& calls, const Options& options) {
  v1::WhyRequest request;
  request.set_request_id(options.request_id);
  request.set_last(options.last);
  request.set_below(options.below);
  PREFIXD_ASSIGN_OR_RETURN(const v1::WhyReply reply, calls.Why(request));
  return Outcome{options.json ? ReplyJson(reply) : WhyView(reply),
                 reply.answers().empty() ? kExitNothing : kExitOk};
}

// Reads the weights of --model.
absl::StatusOr<SpaceSpec> ModelIdentity(const Options& options, const Terminal& terminal) {
  Progress progress(ProgressOn(options, terminal));
  return IdentityOfFolder(options.model, options.adapter, [&](uint64_t read, uint64_t whole) {
    progress.Show(read, whole, absl::StrCat(base::FormatBytes(read), " of the weights read"));
  });
}

// Returns the identity from the --identity file or of the --space that prefixd knows; none without
// these flags.
absl::StatusOr<std::optional<SpaceSpec>> SpecNamed(DaemonCalls& calls, const Options& options,
                                                   const Terminal& terminal) {
  std::optional<SpaceSpec> spec;
  if (options.command == Command::kImport && !options.model.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(spec, ModelIdentity(options, terminal));
    spec->salt = options.salt;
  } else if (!options.identity.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile("--identity", options.identity));
    PREFIXD_ASSIGN_OR_RETURN(spec, ReadIdentity(text, options.salt));
  } else if (!options.space.empty()) {
    PREFIXD_ASSIGN_OR_RETURN(const Space space, FindOpenable(calls, options));
    PREFIXD_ASSIGN_OR_RETURN(spec, SpecOf(space.identity()));
  }
  return spec;
}

// Returns the identity without what a file or a space adds to it.
std::string BareIdentity(SpaceSpec spec) {
  spec.model.clear();
  spec.salt.clear();
  spec.block_tokens = 0;
  spec.layers.clear();
  return WriteIdentity(spec);
}

// Returns the fullest space that workers opened with this identity, whatever their layers' formats,
// so that an import lands there; nullopt if there is none.
std::optional<SpaceSpec> OpenedAs(const v1::ListSpacesReply& spaces, const SpaceSpec& spec) {
  std::optional<SpaceSpec> found;
  uint64_t most = 0;
  for (const Space& space : spaces.spaces()) {
    absl::StatusOr<SpaceSpec> opened = SpecOf(space.identity());
    if (!opened.ok() || space.salt_digest() != wire::SaltDigest(spec.salt)) continue;
    if (BareIdentity(*opened) != BareIdentity(spec)) continue;
    if (found.has_value() && space.stats().stored_tokens() <= most) continue;
    most = space.stats().stored_tokens();
    found = *std::move(opened);
    found->salt = spec.salt;
  }
  return found;
}

// Imports into the space that workers use, if the identity leaves the layers open and that space
// has the file's format; else into one of the file's own formats.
absl::StatusOr<CarryReport> ImportWhereOpened(const v1::ListSpacesReply& spaces,
                                              const CarryRequest& request) {
  if (request.spec.has_value() && request.spec->layers.empty()) {
    CarryRequest opened = request;
    opened.spec = OpenedAs(spaces, *request.spec);
    if (opened.spec.has_value()) {
      absl::StatusOr<CarryReport> report = Import(opened);
      if (!absl::IsInvalidArgument(report.status())) return report;
    }
  }
  return Import(request);
}

// Returns the model of the space that was there before, or that none was.
std::string WhoseSpace(const v1::ListSpacesReply& before, const std::string& id) {
  for (const Space& space : before.spaces()) {
    if (HexId(space.stats().space_id()) != id) continue;
    return absl::StrCat("that of ", PrintableText(space.identity().model()), ", with ",
                        Plural(space.stats().stored_tokens(), "token"), " before");
  }
  return absl::StrCat("a new one, which no worker has opened: prefixctl spaces --explain ",
                      id.substr(0, 12), " says how it differs from the others");
}

absl::StatusOr<Outcome> Carry(DaemonCalls& calls, const Options& options,
                              const Terminal& terminal) {
  Progress progress(ProgressOn(options, terminal));
  CarryRequest request{
      .server = options.server,
      .token_file = options.token_file,
      .salt = options.salt,
      .timeout = options.timeout,
      .path = options.path,
      .tokens = options.tokens,
      .format = options.llama ? CarryFormat::kLlama : CarryFormat::kMlx,
      .meta_state = options.meta_state,
      .like = options.like,
      .model = options.model,
      .on_step = [&](uint64_t done, uint64_t whole) { progress.Show(done, whole, ""); }};
  PREFIXD_ASSIGN_OR_RETURN(request.spec, SpecNamed(calls, options, terminal));
  const bool imports = options.command == Command::kImport;
  // Not everybody may list the spaces: then nobody says whose the import's is.
  const absl::StatusOr<v1::ListSpacesReply> before =
      imports ? calls.ListSpaces({}) : absl::StatusOr<v1::ListSpacesReply>(v1::ListSpacesReply());
  const v1::ListSpacesReply none;
  PREFIXD_ASSIGN_OR_RETURN(
      CarryReport report,
      imports ? ImportWhereOpened(before.ok() ? *before : none, request) : Export(request));
  if (imports && before.ok()) report.whose = WhoseSpace(*before, report.space);
  const int exit_code = report.tokens > 0 ? kExitOk : kExitNothing;
  if (options.json) return Outcome{CarryJson(report), exit_code};
  return Outcome{imports ? ImportView(request, report) : ExportView(request, report), exit_code};
}

absl::StatusOr<Outcome> Config(DaemonCalls& calls, const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetConfigReply reply, calls.GetConfig());
  return Outcome{options.json ? ReplyJson(reply) : ConfigView(reply)};
}

absl::StatusOr<Outcome> Doctor(DaemonCalls& calls, const Options& options) {
  const DaemonView daemon{.address = options.server,
                          .config = calls.GetConfig(),
                          .stats = calls.GetStats(),
                          .sessions = calls.ListSessions(),
                          .own_version = kVersion};
  const std::vector<Finding> findings = Examine(Host{}, daemon, options.disk);
  return Outcome{options.json ? DoctorJson(findings) : DoctorView(findings),
                 AnyWrong(findings) ? kExitRefused : kExitOk};
}

absl::StatusOr<Outcome> Identity(const Options& options, const Terminal& terminal) {
  PREFIXD_ASSIGN_OR_RETURN(SpaceSpec spec, ModelIdentity(options, terminal));
  spec.salt = options.salt;
  return Outcome{WriteIdentity(spec) + "\n"};
}

absl::StatusOr<Outcome> Arenas(const Options& options) {
  std::vector<std::string> paths = options.remove;
  if (options.remove_left) {
    for (const ArenaInfo& arena : FindArenas(options.folders)) {
      if (arena.state == ArenaInfo::State::kLeft) paths.push_back(arena.path);
    }
  }
  if (paths.empty() && !options.remove_left) {
    const std::vector<ArenaInfo> found = FindArenas(options.folders);
    return Outcome{options.json ? ArenasJson(found) : ArenasView(found)};
  }
  std::vector<ArenaInfo> removed;
  for (const std::string& path : paths) {
    PREFIXD_ASSIGN_OR_RETURN(removed.emplace_back(), RemoveArena(path));
  }
  return Outcome{options.json ? ArenasJson(removed) : RemovedView(removed)};
}

absl::StatusOr<Outcome> Plan(const Options& options) {
  PREFIXD_ASSIGN_OR_RETURN(std::string text, RunPlan(options.plan, options.json));
  return Outcome{std::move(text)};
}

absl::StatusOr<Outcome> Run(DaemonCalls& calls, const Options& options, const Terminal& terminal) {
  switch (options.command) {
    case Command::kStatus:
      return Status(calls, options);
    case Command::kStats:
      return Stats(calls, options);
    case Command::kSpaces:
      return Spaces(calls, options);
    case Command::kMatch:
      return Match(calls, options);
    case Command::kClear:
      return Clear(calls, options, terminal);
    case Command::kSessions:
      return Sessions(calls, options);
    case Command::kLeases:
      return Leases(calls, options);
    case Command::kFlush:
      return Flush(calls, options, terminal);
    case Command::kPin:
      return Pin(calls, options);
    case Command::kUnpin:
      return Unpin(calls, options);
    case Command::kPins:
      return Pins(calls, options);
    case Command::kPrefixes:
      return Prefixes(calls, options);
    case Command::kEvents:
      return Events(calls, options, terminal);
    case Command::kWhy:
      return Why(calls, options);
    case Command::kBudget:
      return Budget(calls, options);
    case Command::kVerify:
      return Verify(calls, options, terminal);
    case Command::kPrefetch:
      return Prefetch(calls, options);
    case Command::kImport:
    case Command::kExport:
      return Carry(calls, options, terminal);
    case Command::kDoctor:
      return Doctor(calls, options);
    case Command::kIdentity:
      return Identity(options, terminal);
    case Command::kArenas:
      return Arenas(options);
    case Command::kPlan:
      return Plan(options);
    case Command::kToken:  // these two before
    case Command::kTop:
    case Command::kConfig:
      break;
  }
  return Config(calls, options);
}

absl::StatusOr<Outcome> Top(const Options& options, const Surroundings& surroundings) {
  PREFIXD_ASSIGN_OR_RETURN(std::string text, RunTop(options, surroundings));
  return Outcome{std::move(text)};
}

absl::StatusOr<Outcome> Run(const Options& options, const Surroundings& surroundings,
                            const Terminal& terminal) {
  if (options.command == Command::kTop)
    return Top(options, surroundings);       // connects again and again
  if (options.command == Command::kToken) {  // needs no token of its own
    PREFIXD_ASSIGN_OR_RETURN(std::string text, MakeToken(options.token, options.json));
    return Outcome{std::move(text)};
  }
  PREFIXD_RETURN_IF_ERROR(wire::TargetOf(options.server).status());
  DaemonCalls::Where where{.server = options.server, .admin = options.admin};
  const std::string token_file = wire::TokenFileFor(options.server, options.token_file);
  if (!token_file.empty()) {
    const auto bearer = std::make_shared<wire::Bearer>(token_file);
    PREFIXD_RETURN_IF_ERROR(bearer->Reload());
    where.bearer = bearer;
  }
  DaemonCalls calls(where, options.timeout);
  return Run(calls, options, terminal);
}

}  // namespace

int RunPrefixctl(const std::vector<std::string>& arguments, const Surroundings& surroundings,
                 Terminal terminal) {
  Options options;
  if (const std::optional<int> code =
          ParseCommandLine(arguments, surroundings, &options, terminal.out, terminal.err)) {
    return *code;
  }
  const absl::StatusOr<Outcome> outcome = Run(options, surroundings, terminal);
  if (!outcome.ok()) return Explain(outcome.status(), options, terminal.err);
  terminal.out << outcome->text << std::flush;
  return outcome->exit_code;
}

}  // namespace prefixd::cli
