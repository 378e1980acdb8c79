#include "client/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/nearest.h"
#include "base/size.h"
#include "base/status.h"
#include "base/version.h"
#include "client/cli/add_command.h"
#include "client/cli/carry_options.h"
#include "client/cli/events.h"
#include "client/cli/plan_options.h"
#include "client/cli/token_options.h"
#include "client/cli/top/top_options.h"
#include "completion/completion.h"
#include "os/memory.h"
#include "os/sockets.h"
#include "wire/admin_socket.h"

namespace prefixd::cli {
namespace {

constexpr const char* kAbout =
    "prefixctl: asks a running prefixd what it holds and what it saved, and tells it what to drop.";
constexpr const char* kExamples =
    "Examples:\n"
    "  prefixctl status                              is it well, is it full, does it help\n"
    "  prefixctl --json stats | jq .counters         every counter, for scripts\n"
    "  prefixctl match --space 3f2a --text 'Once'    how much of a prompt is cached\n"
    "\n"
    "Exit codes: 0 ok; 1 prefixd said no; 2 wrong command line; 3 prefixd does not answer;\n"
    "4 match found nothing.\n"
    "prefixctl COMMAND --help explains a command.";

// Flag values as CLI11 reads them, not yet checked.
struct Texts {
  std::string timeout;
  std::string ttl;
  std::string pin;
  std::string below;
  std::string ram, ssd;
  std::string ram_floor, ram_ceiling, ssd_floor, ssd_ceiling;
  std::string text;
  std::string file;
  std::string rate;
};

std::string GetOr(const std::map<std::string, std::string>& map, const std::string& key) {
  const auto found = map.find(key);
  return found == map.end() ? std::string() : found->second;
}

// Returns the address as gRPC takes it: "/path" is a unix socket too.
std::string ServerAddress(const std::string& text) {
  return text.rfind('/', 0) == 0 ? absl::StrCat("unix://", text) : text;
}

void DeclareBudget(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* budget =
      AddCommand(app, options, Command::kBudget, "budget",
                 "show the budgets, or change them until the next start",
                 "A smaller RAM budget evicts the coldest and gives memory back as slabs run "
                 "empty; a smaller\n"
                 "SSD budget drops the oldest segments.\n"
                 "Examples:\n  prefixctl budget\n  prefixctl budget --ram 2GiB --ssd 20GiB");
  budget->add_option("--ram", texts->ram, "everything in memory")->type_name("SIZE");
  budget->add_option("--ssd", texts->ssd, "the files of the SSD tier")->type_name("SIZE");
}

void DeclareViews(CLI::App& app, Options* options, Texts* texts) {
  AddCommand(app, options, Command::kStatus, "status",
             "one screen: health, budgets, hit rate in tokens, what was saved, spaces",
             "Examples:\n  prefixctl status\n  prefixctl --server 127.0.0.1:7777 status");
  AddCommand(app, options, Command::kStats, "stats", "every counter, gauge and latency",
             "Examples:\n  prefixctl stats\n  prefixctl --json stats | jq '.counters'");
  CLI::App* spaces =
      AddCommand(app, options, Command::kSpaces, "spaces",
                 "the spaces: one cache for each model "
                 "in one configuration",
                 "Examples:\n  prefixctl spaces\n"
                 "  prefixctl spaces --explain 3f2a    why did a worker not hit? what differs\n"
                 "  prefixctl spaces --set 3f2a --ram-floor 1GiB --ttl 24h");
  spaces
      ->add_option("--explain", options->space,
                   "show the identity of this space, and in which fields every other one differs")
      ->type_name("ID");
  CLI::Option* set = spaces
                         ->add_option("--set", options->space,
                                      "replace the limits of this space; what is not given is none")
                         ->type_name("ID")
                         ->excludes("--explain");
  const auto limit = [&](const char* name, std::string* text, const char* about) {
    return spaces->add_option(name, *text, about)->type_name("SIZE")->needs(set);
  };
  limit("--ram-floor", &texts->ram_floor, "below it nothing is evicted for other spaces");
  limit("--ram-ceiling", &texts->ram_ceiling, "above it its own coldest go");
  limit("--ssd-floor", &texts->ssd_floor, "below it its copies are written again, not aged out");
  limit("--ssd-ceiling", &texts->ssd_ceiling, "above it its coldest copies are forgotten");
  limit("--ttl", &texts->ttl, "blocks unused for so long are forgotten")->type_name("TIME");
  CLI::App* sessions = AddCommand(
      app, options, Command::kSessions, "sessions",
      "the workers: who is attached, and who is cut off but may still be reading",
      "A worker that hangs keeps what it holds; --end takes its session away, and what it may be\n"
      "reading is free when its process ends.\n"
      "Examples:\n  prefixctl sessions\n  prefixctl sessions --end 5f3a");
  sessions
      ->add_option("--end", options->session,
                   "end the session that begins with these digits; its worker attaches anew")
      ->type_name("ID");
  AddCommand(app, options, Command::kLeases, "leases", "what is being read, by whom, since when",
             "Examples:\n  prefixctl leases\n  prefixctl --json leases | jq '.leases[].bytes'");
  AddCommand(app, options, Command::kFlush, "flush",
             "write everything that is in RAM only to the SSD, and wait for it",
             "Exit code 1 when something is left in RAM only. Waits up to 60s unless --timeout "
             "says otherwise.\n"
             "Examples:\n  prefixctl flush\n  prefixctl --timeout 10m flush");
  AddCommand(app, options, Command::kConfig, "config",
             "the settings that prefixd runs with, where each comes from, and the limits",
             "Examples:\n  prefixctl config\n  prefixctl --json config | jq '.settings.ram'");
}

void DeclareDoctor(CLI::App& app, Options* options) {
  CLI::App* doctor = AddCommand(
      app, options, Command::kDoctor, "doctor",
      "check the host, the settings and prefixd, and say what to change, most worth first",
      "Works without a running prefixd too; then it assumes prefixd's defaults. Exit code 1 "
      "where\n"
      "something is wrong.\n"
      "Examples:\n  prefixctl doctor\n  prefixctl doctor --json | jq "
      "'.findings[] | select(.change != \"\")'");
  doctor->add_flag("--disk", options->disk,
                   "measure the SSD tier's disk too: 128 MiB are written, read and removed");
}

void DeclareArenas(CLI::App& app, Options* options) {
  options->folders = {os::FolderForSharedMemory(), "/run/prefixd_arena"};
  CLI::App* arenas = AddCommand(
      app, options, Command::kArenas, "arenas",
      "the files on this host that hold RAM tiers: whose, how old, how large; removes those left",
      "An arena stays when its prefixd ends, and the next prefixd on the same socket uses it "
      "again. One of\n"
      "another socket's path, a mistyped one say, stays until it is removed or the host restarts. "
      "None that\n"
      "a running prefixd has is removed. No prefixd is asked.\n"
      "Examples:\n  prefixctl arenas\n  prefixctl arenas --remove "
      "/dev/shm/prefixd-1e8b0793e6f62b44.arena");
  arenas->add_option("--folder", options->folders, "where to look, in place of the usual folders")
      ->type_name("PATH");
  arenas->add_option("--remove", options->remove, "remove this arena, its key and its locks")
      ->type_name("PATH");
  arenas->add_flag("--remove-left", options->remove_left,
                   "remove every arena of yours in these folders that no prefixd has");
}

// Declares the flags of a command about one prompt. Returns their group, of which one is required.
CLI::Option_group* DeclarePrompt(CLI::App* command, Options* options, Texts* texts) {
  command
      ->add_option("--space", options->space, "the first digits of a space id (prefixctl spaces)")
      ->type_name("ID");
  CLI::Option_group* which = command->add_option_group("Prompt", "one of these");
  which->add_option("--tokens", options->tokens, "token ids: 1,2,3")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("IDS");
  which->add_option("--text", texts->text, "every byte is a token: for byte-level models")
      ->type_name("TEXT");
  which->add_option("--file", texts->file, "the same from a file")->type_name("PATH");
  which->require_option(1);
  return which;
}

void DeclareMatch(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* match = AddCommand(app, options, Command::kMatch, "match",
                               "how much of a prompt is cached; changes nothing",
                               "Exit code 4 when not one token is cached.\n"
                               "Examples:\n  prefixctl match --space 3f2a --tokens 1,2,3\n"
                               "  prefixctl match --space 3f2a --file prompt.txt");
  DeclarePrompt(match, options, texts);
  match->get_option("--space")->required();
}

void DeclarePrefetch(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* prefetch =
      AddCommand(app, options, Command::kPrefetch, "prefetch",
                 "read what is cached of a prompt from SSD into RAM, ahead of its request",
                 "Exit code 4 when nothing of it is cached.\n"
                 "Examples:\n  prefixctl prefetch --space 3f2a --tokens 1,2,3\n"
                 "  prefixctl prefetch --space 3f2a --file system-prompt.txt");
  DeclarePrompt(prefetch, options, texts);
  prefetch->get_option("--space")->required();
}

void DeclareVerify(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* verify = AddCommand(
      app, options, Command::kVerify, "verify",
      "read and check what is stored, in RAM and on SSD; bad pages are dropped",
      "What is bad is stored again by the next worker that computes it. Exit code 1 when\n"
      "something was. In RAM, pages that workers are reading are passed over: they were checked\n"
      "when they came.\n"
      "Examples:\n  prefixctl verify --rate 200MB\n  prefixctl --json verify");
  verify
      ->add_option("--rate", texts->rate,
                   "read at most so much a second, at least 4MB (default: as fast as it goes)")
      ->type_name("SIZE");
}

absl::Status ReadRate(const std::string& text, Options* options) {
  constexpr uint64_t kLeast = 4'000'000;  // one call must read a segment in time
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<base::Size> rate = base::ParseSize(text);
  if (!rate.ok() || rate->bytes < kLeast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate: \"", text, "\" is not a size of at least 4MB, as 200MB or 1GB"));
  }
  options->rate = rate->bytes;
  return absl::OkStatus();
}

void DeclarePins(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* pin =
      AddCommand(app, options, Command::kPin, "pin",
                 "keep what is cached of a prompt, loaded into RAM, until its time is up",
                 "The pin stays when prefixctl ends; a restart of prefixd forgets it. Pinning the "
                 "same prompt\n"
                 "again replaces it. Leases and pins together take at most 80 % of the RAM tier.\n"
                 "Exit code 4 when not one token is cached.\n"
                 "Examples:\n  prefixctl pin --space 3f2a --file system-prompt.txt --ttl 1h\n"
                 "  prefixctl pin --space 3f2a --tokens 1,2,3");
  DeclarePrompt(pin, options, texts);
  pin->get_option("--space")->required();
  pin->add_option("--ttl", texts->ttl, "for how long: 90s, 30m, 1h; without it until unpin")
      ->type_name("TIME");
  CLI::App* unpin =
      AddCommand(app, options, Command::kUnpin, "unpin", "end a pin: by its id, or by its prompt",
                 "Examples:\n  prefixctl unpin --pin 5f3a000000000012\n"
                 "  prefixctl unpin --space 3f2a --file system-prompt.txt");
  CLI::Option_group* which = DeclarePrompt(unpin, options, texts);
  which->add_option("--pin", texts->pin, "its id, as prefixctl pins shows it")->type_name("ID");
  AddCommand(app, options, Command::kPins, "pins", "what is pinned, by whom, until when",
             "Examples:\n  prefixctl pins\n  prefixctl --json pins | jq '.pins[].bytes'");
}

void DeclarePrefixes(CLI::App& app, Options* options) {
  CLI::App* prefixes = AddCommand(
      app, options, Command::kPrefixes, "prefixes",
      "which prefixes the last requests read most, as a tree",
      "What the same requests read is one line; what only some of them read further is indented\n"
      "under it. Of the last 4,096 answers, whole blocks that are still in the cache.\n"
      "Examples:\n  prefixctl prefixes\n  prefixctl prefixes --space 3f2a --most 100");
  prefixes->add_option("--space", options->space, "only of this space")->type_name("ID");
  prefixes->add_option("--most", options->most, "at most so many lines")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
}

void DeclareWhy(CLI::App& app, Options* options, Texts* texts) {
  CLI::App* why = AddCommand(
      app, options, Command::kWhy, "why",
      "why the last requests were not served whole, a sentence each",
      "prefixd remembers the last 4,096 answers, without their tokens. The id of a request is the\n"
      "worker's own, or the one that prefixd's log shows. Exit code 4 when none fits.\n"
      "Examples:\n  prefixctl why chat-17\n  prefixctl why --last 20 --below 50%");
  why->add_option("REQUEST_ID", options->request_id,
                  "this request; without it the newest ones, as many as --last says");
  why->add_option("--last", options->last, "at most so many")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  why->add_option("--below", texts->below,
                  "only where less than this share of the tokens could be restored: 50%")
      ->type_name("SHARE");
}

void DeclareClear(CLI::App& app, Options* options) {
  CLI::App* clear = AddCommand(
      app, options, Command::kClear, "clear",
      "forget what is cached, in both tiers and after a restart too; running requests "
      "keep what they read, and files shrink as segments age out",
      "Asks before it does so on a terminal; elsewhere --yes is required.\n"
      "Examples:\n  prefixctl clear --space 3f2a\n  prefixctl clear --all --yes\n  prefixctl clear "
      "--space 3f2a --purge");
  CLI::Option_group* which = clear->add_option_group("What", "one of these");
  which->add_option("--space", options->space, "the first digits of a space id (prefixctl spaces)")
      ->type_name("ID");
  which->add_flag("--all", options->all, "every space");
  which->require_option(1);
  clear->add_flag(
      "--purge", options->purge,
      "leave no byte: free memory is zeroed, files that hold some of it are removed, what "
      "other spaces have in these is written again first");
  clear->add_flag("--yes", options->yes, "do not ask");
}

absl::Status ReadTimeout(const std::string& text, Options* options) {
  const bool waits = options->command == Command::kFlush || options->command == Command::kPin ||
                     options->command == Command::kImport || options->command == Command::kExport ||
                     options->command == Command::kVerify ||
                     (options->command == Command::kClear && options->purge);
  absl::Duration timeout = waits ? absl::Seconds(60) : absl::Seconds(5);
  if (!text.empty() && (!absl::ParseDuration(text, &timeout) || timeout <= absl::ZeroDuration() ||
                        timeout > absl::Hours(24))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout: \"", text, "\" is not a time like 500ms, 30s or 2m"));
  }
  options->timeout = std::max(std::chrono::milliseconds(1), absl::ToChronoMilliseconds(timeout));
  return absl::OkStatus();
}

absl::Status ReadTtl(const std::string& text, Options* options) {
  if (text.empty()) return absl::OkStatus();
  absl::Duration ttl;
  if (!absl::ParseDuration(text, &ttl) || ttl < absl::Milliseconds(1) ||
      ttl > absl::Hours(24 * 365)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ttl: \"", text, "\" is not a time like 90s, 30m or 1h, up to a year"));
  }
  options->ttl = absl::ToChronoMilliseconds(ttl);
  return absl::OkStatus();
}

absl::Status ReadShare(const std::string& text, Options* options) {
  if (text.empty()) return absl::OkStatus();
  const bool percent = text.back() == '%';
  double share = 0;
  if (absl::SimpleAtod(percent ? text.substr(0, text.size() - 1) : text, &share)) {
    options->below = percent ? share / 100 : share;
    if (options->below > 0 && options->below <= 1) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--below: \"", text, "\" is not a share like 50% or 0.5"));
}

absl::Status ReadSize(const char* flag, const std::string& text, uint64_t* bytes) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<base::Size> size = base::ParseSize(text);
  if (size.ok() && size->percent == 0) {
    *bytes = size->bytes;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", text, "\" is not a size like 512MiB or 20GiB"));
}

absl::Status ReadBudget(const char* flag, const std::string& text, uint64_t* bytes) {
  PREFIXD_RETURN_IF_ERROR(ReadSize(flag, text, bytes));
  if (text.empty() || *bytes > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": a budget of 0 cannot be set while prefixd runs"));
}

absl::Status ReadSizes(const CLI::App& app, const Texts& texts, Options* options) {
  const CLI::App* const spaces = app.get_subcommand("spaces");
  options->set_limits = spaces->get_option("--set")->count() > 0;
  PREFIXD_RETURN_IF_ERROR(ReadBudget("--ram", texts.ram, &options->ram_bytes));
  PREFIXD_RETURN_IF_ERROR(ReadBudget("--ssd", texts.ssd, &options->ssd_bytes));
  PREFIXD_RETURN_IF_ERROR(ReadSize("--ram-floor", texts.ram_floor, &options->ram_floor));
  PREFIXD_RETURN_IF_ERROR(ReadSize("--ram-ceiling", texts.ram_ceiling, &options->ram_ceiling));
  PREFIXD_RETURN_IF_ERROR(ReadSize("--ssd-floor", texts.ssd_floor, &options->ssd_floor));
  return ReadSize("--ssd-ceiling", texts.ssd_ceiling, &options->ssd_ceiling);
}

bool IsHex(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isdigit(c) != 0 || (c >= 'a' && c <= 'f');
  });
}

absl::Status CheckSession(const Options& options) {
  if (IsHex(options.session) && options.session.size() <= 16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", options.session,
      "\" is not a session: up to 16 digits of 0-9 and a-f, as prefixctl sessions shows"));
}

absl::Status CheckSpace(const Options& options) {
  const bool hex = IsHex(options.space);
  if (hex && options.space.size() <= 64) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", options.space,
                   "\" is not a space id: up to 64 digits of 0-9 and a-f, as "
                   "prefixctl spaces lists them"));
}

absl::Status ReadPin(const std::string& text, Options* options) {
  if (!text.empty() && text.size() <= 16 && IsHex(text)) {
    options->pin = std::stoull(text, nullptr, 16);
  }
  if (options->pin != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not a pin: up to 16 digits of 0-9 and a-f, as prefixctl pins shows"));
}

absl::Status ReadPrompt(const CLI::App& command, const Texts& texts, Options* options) {
  if (options->command == Command::kUnpin && command.get_option("--pin")->count() > 0) {
    return ReadPin(texts.pin, options);
  }
  if (options->space.empty()) {
    return absl::InvalidArgumentError("--space is required: whose prompt is it?");
  }
  if (command.get_option("--tokens")->count() > 0) return absl::OkStatus();
  std::string bytes = texts.text;
  if (command.get_option("--file")->count() > 0) {
    std::ifstream file(texts.file, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("--file: cannot read ", texts.file));
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(command.get_name(), ": the prompt is empty"));
  }
  for (char c : bytes) options->tokens.push_back(static_cast<unsigned char>(c));
  return absl::OkStatus();
}

// Returns the line that names what the first word or flag is like that nobody knows, or "".
std::string Hint(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> commands, flags;
  const auto add_flags = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  };
  add_flags(app);
  for (const CLI::App* command : app.get_subcommands({})) {
    commands.push_back(command->get_name());
    if (command->parsed()) add_flags(*command);
  }
  for (const std::string& argument : arguments) {
    const std::string word = argument.substr(0, argument.find('='));
    const std::vector<std::string>& known = word.starts_with("--") ? flags : commands;
    if (std::ranges::find(known, word) != known.end()) continue;
    const std::string nearest = base::Nearest(word, known);
    if (!nearest.empty()) return absl::StrCat("Did you mean ", nearest, "?\n");
  }
  return "";
}

bool HasPrompt(Command command) {
  return command == Command::kMatch || command == Command::kPrefetch || command == Command::kPin ||
         command == Command::kUnpin;
}

}  // namespace

std::string DefaultServer(const Surroundings& surroundings) {
  const std::string named = GetOr(surroundings.environment, "PREFIXD_SERVER");
  if (!named.empty()) return ServerAddress(named);
  const std::string system = "/run/prefixd/prefixd.sock";
  const std::string named_folder = GetOr(surroundings.environment, "XDG_RUNTIME_DIR");
  const std::string runtime = named_folder.empty() ? os::FolderForSockets() : named_folder;
  const std::string user = absl::StrCat(runtime, "/prefixd/prefixd.sock");
  const bool use_user =
      !runtime.empty() && !surroundings.exists(system) && surroundings.exists(user);
  return ServerAddress(use_user ? user : system);
}

std::string DefaultAdmin(const Surroundings& surroundings, const std::string& server) {
  const std::string named = GetOr(surroundings.environment, "PREFIXD_ADMIN");
  if (!named.empty()) return ServerAddress(named);
  const std::string socket = wire::SocketPathOf(server);
  if (socket.empty() || !surroundings.writable) return server;
  const std::string admin = wire::AdminSocketOf(socket);
  return surroundings.writable(admin) ? ServerAddress(std::filesystem::absolute(admin)) : server;
}

std::optional<int> ParseCommandLine(const std::vector<std::string>& arguments,
                                    const Surroundings& surroundings, Options* options,
                                    std::ostream& out, std::ostream& err) {
  CLI::App app(kAbout, "prefixctl");
  app.set_version_flag("--version", std::string("prefixctl ") + kVersion);
  app.footer(kExamples);
  app.require_subcommand(0, 1);  // checked below: CLI11 would not name a misspelled command
  app.fallthrough();             // global flags may follow the command
  options->server = DefaultServer(surroundings);
  Texts texts;
  app.add_option("--server", options->server,
                 "where prefixd listens: unix:///path, 127.0.0.1:port or tls://host:port; "
                 "$PREFIXD_SERVER sets it "
                 "too")
      ->type_name("ADDRESS")
      ->capture_default_str();
  app.add_option("--admin", options->admin,
                 "prefixd's admin socket (default: prefixd.admin.sock beside the server's "
                 "prefixd.sock, where you may use it); $PREFIXD_ADMIN sets it too")
      ->type_name("ADDRESS");
  options->token_file = GetOr(surroundings.environment, "PREFIXD_TOKEN_FILE");
  options->salt = GetOr(surroundings.environment, "PREFIXD_SALT");
  app.add_option("--token-file", options->token_file,
                 "your copy of the file that prefixd's --token-file names, for a server on TCP; "
                 "$PREFIXD_TOKEN_FILE sets it too")
      ->type_name("PATH");
  app.add_option("--salt", options->salt,
                 "of the space that --space or the file names, where it has one; $PREFIXD_SALT, "
                 "which others do not see among the processes, sets it too")
      ->type_name("TEXT");
  app.add_flag("--json", options->json,
               "one JSON object on standard output, for scripts: the fields of "
               "proto/prefixd/v1/admin.proto; integers are numbers, ids are hexadecimal");
  app.add_option("--timeout", texts.timeout, "how long to wait for prefixd (default: 5s)")
      ->type_name("TIME");
  DeclareViews(app, options, &texts);
  DeclareDoctor(app, options);
  DeclareArenas(app, options);
  DeclareBudget(app, options, &texts);
  DeclareMatch(app, options, &texts);
  DeclarePrefetch(app, options, &texts);
  DeclareVerify(app, options, &texts);
  DeclarePins(app, options, &texts);
  DeclareWhy(app, options, &texts);
  DeclarePrefixes(app, options);
  DeclareEvents(app, options);
  DeclareClear(app, options);
  CarryTexts carry;
  DeclareCarry(app, options, &carry);
  PlanTexts plan;
  DeclarePlan(app, options, &plan);
  TopTexts top;
  DeclareTop(app, options, &top);
  TokenTexts token;
  DeclareToken(app, options, &token);
  completion::AddTo(app);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // CLI11's order
  try {
    app.parse(reversed);
  } catch (const CLI::ExtrasError& error) {
    app.exit(error, out, err);
    err << Hint(app, arguments);
    return kExitUsage;
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitOk : kExitUsage;
  }
  options->server = ServerAddress(options->server);
  options->admin = options->admin.empty() ? DefaultAdmin(surroundings, options->server)
                                          : ServerAddress(options->admin);
  absl::Status status;
  if (app.get_subcommands().empty()) {
    status = absl::InvalidArgumentError("say what to do, prefixctl status say; see --help");
  }
  if (status.ok()) status = ReadTimeout(texts.timeout, options);
  if (status.ok()) status = ReadCarry(carry, options);
  if (status.ok()) status = ReadPlan(plan, options);
  if (status.ok()) status = ReadTop(top, surroundings, options);
  if (status.ok()) status = ReadToken(token, options);
  if (status.ok()) status = CheckSpace(*options);
  if (status.ok()) status = CheckSession(*options);
  if (status.ok()) status = ReadTtl(texts.ttl, options);
  if (status.ok()) status = ReadRate(texts.rate, options);
  if (status.ok()) status = ReadShare(texts.below, options);
  if (status.ok()) status = ReadSizes(app, texts, options);
  if (status.ok() && HasPrompt(options->command)) {
    status = ReadPrompt(*app.get_subcommands().front(), texts, options);
  }
  if (status.ok()) return std::nullopt;
  err << "prefixctl: " << status.message() << "\n";
  return kExitUsage;
}

}  // namespace prefixd::cli
