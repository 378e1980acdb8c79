# A Homebrew formula. It was never run: the checksum is that of no archive yet, and url names where one would be.
# brew install --build-from-source deploy/macos/prefixd.rb, or from a tap. --HEAD needs a url of the repository.
class Prefixd < Formula
  desc "Prefix cache beside LLM inference workers"
  homepage "https://prefixd.example"
  url "https://prefixd.example/prefixd-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"

  depends_on "cli11" => :build
  depends_on "cmake" => :build
  depends_on "googletest" => :build
  depends_on "highway" => :build
  depends_on "ninja" => :build
  depends_on "nlohmann-json" => :build
  depends_on "pkgconf" => :build
  depends_on "abseil"
  depends_on "civetweb"
  depends_on "cpp-httplib"
  depends_on "fmt"
  depends_on "grpc"
  depends_on "ncurses"
  depends_on "openblas"
  depends_on "openssl@3"
  depends_on "prometheus-cpp"
  depends_on "protobuf"
  depends_on "rocksdb"
  depends_on "spdlog"
  depends_on "xxhash"
  depends_on "zeromq"
  depends_on "zstd"

  def install
    # Keg-only, with files for pkg-config that CMake asks for.
    %w[ncurses openblas openssl@3].each { |name| ENV.prepend_path "PKG_CONFIG_PATH", formula_opt(name) }
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", *std_cmake_args,
           "-DPREFIXD_WERROR=OFF", "-DPREFIXD_CUDA=OFF"
    system "cmake", "--build", "build", "--target", "programs"
    %w[prefixd lib dev].each do |part|
      system "cmake", "--install", "build", "--component", part, "--strip"
    end
  end

  def formula_opt(name)
    Formula[name].opt_lib/"pkgconfig"
  end

  service do
    run [opt_bin/"prefixd", "--config", etc/"prefixd/prefixd.conf"]
    keep_alive successful_exit: false
    process_type :interactive
    log_path var/"log/prefixd.log"
    error_log_path var/"log/prefixd.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/prefixctl --version")
    assert_match version.to_s, shell_output("#{bin}/prefixd --version")
  end
end
