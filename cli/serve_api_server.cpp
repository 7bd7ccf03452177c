// ladder api-server: one of several HTTP sides of `ladder serve`, for the engine at the other end of a socket. No user
// starts it.
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/serve_http.h"
#include "step6_engine/remote/api_servers.h"

namespace ladder {

namespace {

void run(const ServeFlags& flags, int descriptor) {
  const StopSignals signals;
  raise_descriptor_limit();
  FileDescriptor listening_socket(ApiServers::kListeningSocket);
  run_api_server(descriptor, [&](ApiServerConnection& connection) {
    const ModelFolder folder = open_model_folder(flags.engine.model, flags.server.generation_config);
    EngineClient& client = connection.client(folder.tokenizer, flags.server.client_options());
    client.replica_stats();  // with the answer comes what /health shows from the first request on
    ServerOptions options = server_options(flags.server);
    options.http.listening_socket = listening_socket.number();
    const std::unique_ptr<Server> server =
        make_server(flags, std::move(options), folder, connection.config(), client);
    listening_socket.close();  // the server has its own copy, which it closes when it is to stop
    connection.tell_serving();
    signals.wait();
    server->stop(flags.server.drain_time());
  });
}

}  // namespace

RunCommand add_api_server_command(CLI::App& app) {
  struct Flags {
    ServeFlags serve;
    int descriptor = -1;
  };
  auto flags = std::make_shared<Flags>();
  flags->serve.add(app);
  app.add_option("--fd", flags->descriptor, "the connection")->check(whole_in_range(3, 1 << 20))->required();
  return [flags] { run(flags->serve, flags->descriptor); };
}

}  // namespace ladder
