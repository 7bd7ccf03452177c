#include "step6_engine/server/http/listening_socket.h"

#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/http_server.h"
#include "step6_engine/server/http/transport.h"

namespace ladder {

using asio::ip::tcp;

constexpr int kBacklog = 1024;

FileDescriptor open_bound_socket(const HttpServerOptions& options) {
  LADDER_CHECK(options.port >= 0 && options.port <= 65535, "--port {}: expected 0 to 65535", options.port);
  asio::io_context context;
  ErrorCode code;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, code);
  LADDER_CHECK(!code && !found.empty(), "--host {}: {}", options.host, code.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor acceptor(context);
  acceptor.open(endpoint.protocol(), code);
  if (!code) acceptor.set_option(tcp::acceptor::reuse_address(true), code);
  // Inherited by what is accepted, and to be set before the window is agreed on.
  if (!code && options.send_buffer_bytes > 0)
    acceptor.set_option(asio::socket_base::send_buffer_size(static_cast<int>(options.send_buffer_bytes)),
                        code);
  if (!code) acceptor.bind(endpoint, code);
  LADDER_CHECK(!code, "--host {} --port {}: {}", options.host, options.port, code.message());
  return FileDescriptor(acceptor.release());
}

void begin_to_listen(int bound_socket) {
  if (::listen(bound_socket, kBacklog) == 0) return;
  const std::string why = std::strerror(errno);
  fail("--port {}: {}", port_of(bound_socket), why);
}

FileDescriptor open_listening_socket(const HttpServerOptions& options) {
  FileDescriptor socket = open_bound_socket(options);
  begin_to_listen(socket.number());
  return socket;
}

uint16_t port_of(int listening_socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  LADDER_CHECK(getsockname(listening_socket, reinterpret_cast<sockaddr*>(&storage), &size) == 0,
               "descriptor {}: expected a listening socket", listening_socket);
  const bool is_ipv6 = storage.ss_family == AF_INET6;
  return ntohs(is_ipv6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                       : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string url_host(const std::string& host) {
  return host.find(':') == host.npos ? host : fmt::format("[{}]", host);
}

std::string http_address(const HttpServerOptions& options, uint16_t port) {
  return fmt::format("{}://{}:{}{}", options.ssl_certfile.empty() ? "http" : "https", url_host(options.host),
                     port, options.root_path);
}

}  // namespace ladder
