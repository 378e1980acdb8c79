// prefixd-llama: see --help.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/version.h"
#include "client/llama/proxy.h"
#include "completion/completion.h"

namespace {

using prefixd::llama::Proxy;
using prefixd::llama::ProxyOptions;

// Splits "host:port".
std::string CheckListen(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return "expected HOST:PORT, got \"" + text + "\"";
  const std::string port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
    return "\"" + port + "\" is not a port";
  }
  return "";
}

int Run(ProxyOptions options) {
  // Signals are taken by one thread: all others are started with them blocked.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  Proxy proxy(std::move(options));
  if (const absl::Status status = proxy.Listen(); !status.ok()) {
    std::fprintf(stderr, "prefixd-llama: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  std::printf("prefixd-llama: ready on port %d\n", proxy.port());
  std::fflush(stdout);
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&stop, &signal);
    proxy.Stop();
  });
  proxy.Serve();
  pthread_kill(waiter.native_handle(), SIGTERM);
  waiter.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Puts prefixd between clients and llama-server: prompts that any server has seen are\n"
      "restored into a slot instead of computed again, also after a restart.\n"
      "Start the servers with --slot-save-path FOLDER on a tmpfs; clients use this address "
      "instead.",
      "prefixd-llama");
  ProxyOptions options;
  std::string listen = "127.0.0.1:8081";
  app.add_option("--server", options.servers,
                 "a llama-server, http://HOST:PORT; repeat it for several of the same model")
      ->required();
  app.add_option("--slot-folder", options.slot_folder,
                 "the servers' --slot-save-path, as this program sees it")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--listen", listen, "where clients connect, HOST:PORT")->capture_default_str();
  app.add_option("--prefixd", options.prefixd, "address of prefixd")->capture_default_str();
  app.add_option("--token-file", options.token_file, "for a prefixd at HOST:PORT");
  app.add_option("--gguf", options.each.gguf,
                 "the model file as this program sees it (default: the path that the server names)")
      ->check(CLI::ExistingFile);
  app.add_option("--salt", options.each.salt,
                 "keeps caches apart: of users, or of servers whose flags change K and V beyond\n"
                 "what they tell (RoPE overrides, control vectors)");
  app.add_option_function<int>(
         "--lookup-deadline-ms",
         [&](int ms) { options.each.lookup_deadline = std::chrono::milliseconds(ms); },
         "most time that a request waits for an answer of prefixd (default 200)")
      ->check(CLI::Range(1, 60'000));
  app.add_option_function<int>(
         "--load-deadline-ms",
         [&](int ms) { options.each.load_deadline = std::chrono::milliseconds(ms); },
         "and for pages that it reads from SSD (default 2000)")
      ->check(CLI::Range(1, 600'000));
  app.set_version_flag("--version", std::string("prefixd-llama ") + prefixd::kVersion);
  prefixd::completion::AddTo(app);
  CLI11_PARSE(app, argc, argv);
  if (const std::string wrong = CheckListen(listen); !wrong.empty()) {
    std::fprintf(stderr, "--listen: %s\n", wrong.c_str());
    return 2;
  }
  options.host = listen.substr(0, listen.rfind(':'));
  options.port = std::stoi(listen.substr(listen.rfind(':') + 1));
  return Run(std::move(options));
}
