// ladder serve as a user starts and ends it. A script talks to it, since the program runs until it is told to stop.
#ifdef LADDER_HAS_SERVER
#include "step7_parallel/hosts/tcp_socket.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace ladder::testing {
namespace {

// Runs `script` in a shell while the server runs; PID and PORT are set, the server's output is in $OUT. The script's
// last command should end the server.
std::string with_server(const std::string& flags, const std::string& script) {
  const std::string command =
      "OUT=$(mktemp); " + shell_quoted(ladder_binary()) + " serve --port 0 --num-kv-blocks 256 " + flags +
      " >$OUT 2>&1 & PID=$!; for i in $(seq 2400); do grep -q 'listening on' $OUT && break; sleep 0.05; done; "
      "PORT=$(sed -n 's/listening on .*:\\([0-9]*\\)[ /].*/\\1/p' $OUT); " +
      script + "; wait $PID; echo \"exit $?\"; cat $OUT; rm -f $OUT";
  std::string out;
  FILE* pipe = popen(("bash -c " + shell_quoted(command)).c_str(), "r");
  char buffer[4096];
  while (const size_t size = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, size);
  pclose(pipe);
  return out;
}

// Bash's own sockets: a request without a client program.
const std::string kHealth =
    "exec 3<>/dev/tcp/127.0.0.1/$PORT; printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3; exec 3>&-; ";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

TEST(Cli_Serve, AnswersUntilItIsToldToStop) {
  for (const char* signal : {"TERM", "INT"}) {
    const std::string out = with_server("", kHealth + "kill -" + signal + " $PID");
    EXPECT_TRUE(has(out, "HTTP/1.1 200 OK")) << out;
    EXPECT_TRUE(has(out, "exit 0")) << out;
    EXPECT_TRUE(has(out, "4,096 tokens, 256 blocks of 16")) << out;
    EXPECT_TRUE(has(out, "2 requests of that length")) << out;
    EXPECT_FALSE(has(out, "warning")) << out;
  }
}

TEST(Cli_Serve, AnEngineInAProcessOfItsOwnIsTracedToo) {
  const TemporaryFolder folder;
  const std::string trace = (folder / "trace.jsonl").string();
  const std::string body = R"({"prompt":[1,2,3],"max_tokens":3,"ignore_eos":true})";
  const std::string out = with_server(
      "--engine-process --trace " + trace,
      "exec 3<>/dev/tcp/127.0.0.1/$PORT; printf 'POST /v1/completions HTTP/1.0\\r\\nContent-Type: "
      "application/json\\r\\nContent-Length: " +
          std::to_string(body.size()) + "\\r\\n\\r\\n" + body + "' >&3; head -1 <&3; exec 3>&-; kill $PID");
  EXPECT_TRUE(has(out, "HTTP/1.1 200 OK")) << out;
  EXPECT_TRUE(has(out, "exit 0")) << out;
  const BinaryResult result = run_binary({"trace", trace});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(has(result.out, "completions seen                1\n")) << result.out;
}

TEST(Cli_Serve, WarnsOfAnOpenDoor) {
  EXPECT_TRUE(has(with_server("--host 0.0.0.0", "kill $PID"), "there is no --api-key"));
  EXPECT_FALSE(has(with_server("--host 0.0.0.0 --api-key k", "kill $PID"), "there is no --api-key"));
}

TEST(Cli_Serve, MistakesAreOneLine) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--host", "no such host"},
                                                {"--ssl-certfile", "/none"},
                                                {"--max-body-size", "much"},
                                                {"--root-path", "llm"},
                                                {"--allowed-origins", "[1]"},
                                                {"--api-key", ""}}) {
    std::vector<std::string> arguments = {"serve", "--port", "0", "--num-kv-blocks", "256"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const BinaryResult result = run_binary(arguments);
    EXPECT_EQ(result.exit_code, 2) << flags[0];
    EXPECT_TRUE(has(result.err, flags[0])) << result.err;
  }
}

// The folder has no weights: who looked for them first would say so.
TEST(Cli_Serve, ATakenPortIsSaidBeforeAModelIsLoaded) {
  const FileDescriptor taken = listen_on({"127.0.0.1", 0}, 1);
  const std::string port = std::to_string(local_address(taken.number()).port);
  const std::string model = (source_folder() / "models/qwen3-0.6b").string();
  for (const char* const servers : {"--api-server-count=1", "--api-server-count=2"}) {
    const BinaryResult result = run_binary({"serve", "--model", model, "--port", port, servers});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_TRUE(has(result.err, "ladder: error: --host 127.0.0.1 --port " + port + ": ")) << result.err;
  }
}

}  // namespace
}  // namespace ladder::testing
#endif
