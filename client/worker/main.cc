// prefix-worker: a reference inference worker on prefixd.
#include <iostream>
#include <optional>

#include "client/worker/options.h"
#include "client/worker/worker.h"

int main(int argc, char** argv) {
  prefixd::worker::Options options;
  const std::optional<int> exit_code =
      prefixd::worker::ParseCommandLine(argc, argv, &options, std::cout, std::cerr);
  if (exit_code.has_value()) return *exit_code;
  return prefixd::worker::RunWorker(options, std::cout, std::cerr);
}
